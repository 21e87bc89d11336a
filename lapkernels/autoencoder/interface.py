"""The interface of all autoencoders with uncertainty: train, draw, moments of draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from lapkernels.autoencoder.moments import Moments, RunningMoments
from lapkernels.autoencoder.training import Epoch, Schedule, train
from lapkernels.curvature.data.contents import Contents, parameters_of
from lapkernels.curvature.data.random_state import seeded
from lapkernels.laplace.predictive.prediction import expectation
from lapkernels.laplace.rollback import rolled_back
from lapkernels.likelihoods import (
    Bernoulli,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    resolve,
)

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
Self = TypeVar("Self", bound="StochasticAutoencoder")
# Default memory for the draws held at a time.
DRAW_BYTES = 256 * 2**20
# Activations of a draw, in numbers for each number of the input: a guess for small networks.
ACTIVATIONS = 16


@dataclass(frozen=True)
class Draws:
    """``latent`` [S, N, K] and ``output`` [S, N, *out] of S drawn autoencoders.

    Outputs are the decoder's own: logits for a Bernoulli likelihood, and means and log-variances
    for a heteroscedastic one.
    """

    latent: Tensor
    output: Tensor


@dataclass(frozen=True)
class Description:
    """``latent`` [N, K], ``output`` [N, *shape] and E[log p(x)] [N] of inputs."""

    latent: Moments
    output: Moments
    log_likelihood: Tensor


class StochasticAutoencoder(ABC):
    """An encoder x [N, *shape] to z [N, K], a decoder z to outputs, and a likelihood p(x | f).

    ``optimizer`` is a function of the parameters, Adam with a rate of 1e-3 by default. All
    randomness of training and drawing comes from ``generator``, seeded by ``seed``: torch's own is
    left alone.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        *,
        likelihood: Any = "gaussian",
        optimizer: MakeOptimizer | None = None,
        seed: int = 0,
    ) -> None:
        self.encoder, self.decoder = encoder, decoder
        self.model = nn.Sequential(OrderedDict(encoder=encoder, decoder=decoder))
        self.likelihood: Likelihood = resolve(likelihood)
        if not isinstance(self.likelihood, Gaussian | Bernoulli | HeteroscedasticGaussian):
            raise ValueError(
                f"likelihood {type(self.likelihood).__name__}: an autoencoder needs Gaussian, "
                "Bernoulli or HeteroscedasticGaussian"
            )
        self.parameters = parameters_of(Contents.of(self.model), None)
        chosen = list(self.parameters.values())
        self.optimizer = Adam(chosen, 1e-3) if optimizer is None else optimizer(chosen)
        self.seed = seed
        self.generator = torch.Generator(chosen[0].device).manual_seed(seed)
        self.history: list[Epoch] = []

    @abstractmethod
    def step(self, x: Tensor) -> Tensor:
        """One step of training on a batch x [N, *shape]; the loss of a sample, on average."""

    @abstractmethod
    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of a sample, on average over the batch, with draws from ``generator``."""

    def state(self) -> dict[str, Tensor]:
        """What training changes beside parameters, buffers, optimiser and generator."""
        return {}

    def settings(self) -> str:
        """The settings that steps depend on, which files must match."""
        return ""

    @abstractmethod
    def draws(self, x: Tensor, samples: int) -> Draws:
        """Latent variables and outputs of ``samples`` drawn autoencoders."""

    @abstractmethod
    def decoded(self, z: Tensor, samples: int) -> Tensor:
        """Outputs [S, N, *out] at latent variables z [N, K]."""

    def fit(
        self: Self,
        loader: Any,
        epochs: int,
        *,
        validation: Any = None,
        patience: int | None = 8,
        schedule: Schedule | None = None,
        checkpoint: Any = None,
        every: int = 100,
        progress: bool = False,
    ) -> Self:
        """Train on batches x, or (x, anything), of a loader that can be read again.

        With ``validation``, a loader too, training ends when its loss has not fallen for
        ``patience`` epochs. ``schedule`` is "plateau", which halves the rate after five epochs
        without a lower loss (on the validation data, if there are any), or a function of the
        optimiser. ``checkpoint`` names a file that is written every so many steps and after every
        epoch; if it exists, training resumes from it, on the CPU with bitwise the same
        result. The order of an epoch depends on ``seed`` and its number alone: the random numbers
        that a loader takes from torch's generator, or from its own, are seeded for it.
        ``history`` has the losses of all epochs.
        """
        path = None if checkpoint is None else Path(checkpoint)
        train(
            self, loader, epochs,
            validation=validation, patience=patience, schedule=schedule,
            checkpoint=path, every=every, progress=progress,
        )  # fmt: skip
        return self

    @rolled_back
    def describe(self, x: Tensor, samples: int = 100) -> Description:
        """Moments and likelihood of x, all over the same drawn autoencoders."""
        latent, output, density = RunningMoments(), OutputMoments(self), RunningMoments()
        for count in self._counts(x, samples):
            draws = self.draws(x, count)
            latent.add(draws.latent)
            output.add(draws.output)
            density.add(self.log_densities(draws.output, x).double())
        return Description(latent.moments, output.moments, density.moments.mean)

    def latent(self, x: Tensor, samples: int = 100) -> Moments:
        """Mean and variance [N, K] of the latent variables over drawn encoders."""
        return self.describe(x, samples).latent

    def reconstruct(self, x: Tensor, samples: int = 100) -> Moments:
        """Mean and variance [N, *shape] of E[x | f] over drawn autoencoders.

        A variance that the decoder itself predicts is added; a constant noise is not.
        """
        return self.describe(x, samples).output

    def log_likelihood(self, x: Tensor, samples: int = 100) -> Tensor:
        r""":math:`E_\theta[\log p(x | \theta)]` of each sample [N]: what training raises."""
        return self.describe(x, samples).log_likelihood

    @rolled_back
    def decode(self, z: Tensor, samples: int = 100) -> Moments:
        """The moments of ``reconstruct`` over drawn decoders, at latent variables z [N, K]."""
        output = OutputMoments(self)
        for count in self._counts(z, samples):
            output.add(self.decoded(z, count))
        return output.moments

    def log_densities(self, output: Tensor, x: Tensor) -> Tensor:
        """log p(x | f) [S, N] of outputs f [S, N, *out]."""

        def nll(f: Tensor, y: Tensor) -> Tensor:
            return self.likelihood.nll(f.unsqueeze(0), y.unsqueeze(0))

        over_samples = torch.func.vmap(nll)
        found = torch.func.vmap(over_samples, in_dims=(0, None))(output, x)
        return -found - self.likelihood.constant(output[0, :1], x[:1]).to(found)

    def expected(self, output: Tensor) -> Tensor:
        """E[x | f] [S, N, *shape] of outputs [S, N, *out]."""
        f = output.flatten(0, 1)
        return expectation(f, torch.zeros_like(f), self.likelihood).unflatten(0, output.shape[:2])

    def _counts(self, x: Tensor, samples: int) -> Iterator[int]:
        """``samples`` in parts that fit into memory."""
        if samples < 1:
            raise ValueError(f"samples={samples}: at least one is needed")
        weights = sum(p.numel() for p in self.parameters.values())
        most = max(1, DRAW_BYTES // (x.element_size() * (weights + ACTIVATIONS * x.numel())))
        for first in range(0, samples, most):
            yield min(most, samples - first)


class OutputMoments:
    """Moments of E[x | f] over outputs [S, N, *out], with the variance that a decoder predicts."""

    def __init__(self, model: StochasticAutoencoder) -> None:
        self._model = model
        self._expected, self._noise = RunningMoments(), RunningMoments()

    def add(self, output: Tensor) -> None:
        """Add outputs."""
        self._expected.add(self._model.expected(output))
        likelihood = self._model.likelihood
        if isinstance(likelihood, HeteroscedasticGaussian):
            log_variance = output.flatten(0, 1).chunk(2, likelihood.dim)[1]
            self._noise.add(log_variance.exp().unflatten(0, output.shape[:2]))

    @property
    def moments(self) -> Moments:
        """Mean, and variance over draws and around them."""
        found = self._expected.moments
        return Moments(found.mean, found.variance + self._noise.moments.mean)


@contextmanager
def seeded_from(generator: torch.Generator) -> Iterator[None]:
    """Inside, torch's default generator is seeded from another one; its state is restored after."""
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    with seeded(int(seed), seed):
        yield
