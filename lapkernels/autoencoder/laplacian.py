"""Laplacian autoencoders: a Gaussian over the weights, trained online."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapkernels.autoencoder import checkpoints
from lapkernels.autoencoder.interface import Draws, StochasticAutoencoder
from lapkernels.autoencoder.moments import Moments
from lapkernels.autoencoder.networks import drawn_outputs, outputs
from lapkernels.autoencoder.training import images_of
from lapkernels.autoencoder.updates import Update, decay_and_scale
from lapkernels.curvature import diag, gradient_and_diag, predictive_variance
from lapkernels.curvature.data.batches import batches_of
from lapkernels.curvature.quantities.diag import Method
from lapkernels.laplace import Laplace
from lapkernels.laplace.rollback import rolled_back
from lapkernels.likelihoods import Bernoulli, Gaussian
from lapkernels.ops import precision_update, sample_from_precision

# What draws of the weights may add to the squared error, as a share of the data's variance: aimed
# at by default, and warned of.
AIM, DROWNED = 1 / 500, 1 / 2


class LaplacianAutoencoder(StochasticAutoencoder):
    r"""q_t = N(θ_t, (H_t + Λ)⁻¹) over all weights of an autoencoder (Miani et al., 2022).

    .. code-block:: python

        ae = lk.LaplacianAutoencoder(encoder, decoder).fit(loader, epochs=20)
        found = ae.reconstruct(x)
        found.mean, found.variance

    Every step draws weights from q_t, takes the gradient of -log p(x | θ) there for the optimiser
    of the mean θ_t, and adds the diagonal of Jᵀ Σ⁻¹ J to the precision, by the rule ``update``
    with the factor α = ``memory``: see :func:`decay_and_scale`. Both come from one forward pass.
    ``prior`` is Λ, a number that is never forgotten, and whose gradient Λθ the mean sees; H₀ is
    ``initial_precision``; with ``data_size`` N the curvature of a batch of B counts N/B times.

    What is None is chosen:

    - for ``natural_gradient``: α = 0.02, Λ = 1, N and H₀ by the first batch. H then settles at the
      curvature of N samples, and by its quadratic approximation P weights add P/N to the squared
      error over the noise, summed over outputs. N is such that this is 1/500 of their variance;
      H₀ is one number for all weights under which the first draws add as much. A Bayesian takes
      the number of training samples for N, which is worth the noise variance of ``likelihood``:
      too large a variance, such as 1 for pixels between 0 and 1, drowns the signal.
    - for the other rules: α = 1e-4, Λ = 0, H₀ = 1 and N = B, as published.

    A warning tells when draws drown the signal.

    ``method`` is one of ``lk.diag``, by default mixed: exact at values of at most ``threshold``
    features, approximate elsewhere. ``curvature_at="mean"`` measures it at θ_t instead of the draw,
    for a forward pass more.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        method: Method = "mixed",
        update: Update = "natural_gradient",
        memory: float | None = None,
        *,
        initial_precision: float | None = None,
        prior: float | None = None,
        data_size: int | None = None,
        threshold: float = 64,
        curvature_at: Literal["sample", "mean"] = "sample",
        **options: Any,
    ) -> None:
        super().__init__(encoder, decoder, **options)
        by_data = update == "natural_gradient"
        self.memory = memory if memory is not None else 0.02 if by_data else 1e-4
        self.update: Update = update
        self.decay, self.scale = decay_and_scale(update, self.memory)
        self.method: Method = method
        if self.method == "hessian":
            raise ValueError("method='hessian' may be negative: no precision; use a Gauss-Newton")
        given = prior if prior is not None else 1.0 if by_data else 0.0
        self._chooses_start = by_data and initial_precision is None
        start = initial_precision if initial_precision is not None else 0.0 if by_data else 1.0
        if not start >= 0 or not given >= 0 or not start + given > 0:
            raise ValueError(
                f"initial_precision={start} and prior={given}: neither may be negative, and "
                "one of them must be positive"
            )
        if update == "redux" and not given > 0:
            raise ValueError("update='redux' forgets all but the last batch: it needs prior > 0")
        if given and data_size is None and not by_data:
            raise ValueError("prior > 0 needs data_size, the number of samples it is weighed with")
        if data_size is not None and data_size < 1:
            raise ValueError(f"data_size={data_size}: a number of samples is needed")
        if curvature_at not in ("sample", "mean"):
            raise ValueError(f"curvature_at={curvature_at!r} must be 'sample' or 'mean'")
        self.data_size, self.threshold = data_size, threshold
        self.curvature_at = curvature_at
        self.precision = {
            name: torch.full_like(p, start, requires_grad=False)
            for name, p in self.parameters.items()
        }
        # What the first batch or a fit chooses is kept in files. N is 0 as long as it has no value.
        self._size, self._prior = _number(float(data_size or 0)), _number(given)
        self._begun = _number(0.0)

    @rolled_back
    def step(self, x: Tensor) -> Tensor:
        """Draw weights, step the mean, update the precision; -log p(x | θ) of a sample."""
        if not self._begun:
            self._begin(x)
        names, count, size = list(self.parameters), len(x), float(self._size)
        with self._placed(self._sample(self.generator)):
            loss, gradient, diagonal = gradient_and_diag(
                self.model, (x, x), self.likelihood, self.method, **self._measuring()
            )
        if self.curvature_at == "mean":
            diagonal = diag(self.model, (x, x), self.likelihood, self.method, **self._measuring())
        for name, parameter in self.parameters.items():
            parameter.grad = gradient[name].div_(count)
            if self.prior:
                parameter.grad.add_(parameter.detach(), alpha=self.prior / size)
        self.optimizer.step()
        self.optimizer.zero_grad()
        precision_update(
            [self.precision[name] for name in names],
            [diagonal[name] for name in names],
            self.decay,
            self.scale * (size / count if size else 1.0),
        )
        return loss / count

    def _begin(self, x: Tensor) -> None:
        """Choose N and H₀ by a batch, unless they are given; warn of draws that drown it."""
        signal = self._signal(x)
        found = diag(self.model, (x, x), self.likelihood, self.method, **self._measuring())
        slope = float(sum(float(d.sum()) for d in found.values())) / len(x)
        weights = sum(p.numel() for p in self.parameters.values())
        if self.update == "natural_gradient" and not float(self._size):
            self._size = _number(max(weights / (AIM * signal), 1.0))
        if self._chooses_start:
            start = float(self._size) * slope / weights
            self.precision = {n: torch.full_like(h, start) for n, h in self.precision.items()}
        first = sum(
            float((d / (self.precision[name] + self.prior)).sum()) for name, d in found.items()
        )
        size = float(self._size)
        settled = {
            "online": weights * self.memory / (size or len(x)),
            "natural_gradient": weights / (size or len(x)),
        }.get(self.update, 0.0)
        for added, which, what in (
            (first / len(x), "first draws of the weights", "initial_precision"),
            (settled, "draws of the weights, once the precision has settled,", "data_size"),
        ):
            if added > DROWNED * signal:
                warnings.warn(
                    f"the {which} add about {added / signal:.1g} times the variance of the data to "
                    f"the squared error, and drown it: raise {what}, or leave it to be chosen",
                    stacklevel=4,
                )
        self._begun = _number(1.0)

    def _signal(self, x: Tensor) -> float:
        """The squared error over the noise of a sample, if all were given the same output."""
        average = x.mean(0, keepdim=True).expand_as(x)
        if isinstance(self.likelihood, Gaussian) and len(x) > 1:
            f = average
        elif isinstance(self.likelihood, Bernoulli) and len(x) > 1:
            f = average.clamp(0.01, 0.99).logit()
        else:
            f = outputs(self.model, x)
        score, curvature = self.likelihood.score(f, x), self.likelihood.diagonal(f)
        found = float((score.double().square() / curvature.double()).sum()) / len(x)
        return max(found, torch.finfo(torch.float32).tiny)

    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """-log p(x | θ) of a sample at drawn weights, up to a constant."""
        weights = dict(zip(self.parameters, self._sample(generator), strict=True))
        return self.likelihood.nll(outputs(self.model, x, weights), x) / len(x)

    @rolled_back
    def fit_post_hoc(self, data: Any, *, tune: bool = True, progress: bool = False) -> Laplace:
        """Replace the precision by that of a Laplace approximation around the present mean.

        H is the diagonal of the whole of ``data`` by ``method``, and the prior's precision, one
        number, maximises the evidence unless ``tune`` is False; then it is ``prior``, or 1. The
        ``Laplace`` is returned.
        """
        options: dict[str, Any] = {"threshold": self.threshold} if self.method == "mixed" else {}
        la = Laplace(
            self.model, self.likelihood, "diag", self.method, prior=self.prior or 1.0,
            seed=self.seed, **options,
        )  # fmt: skip
        la.fit(_Reconstructions(data, self), progress=progress)
        if tune:
            la.tune(by="evidence", noise=False)
        assert la.measured is not None
        self._size = _number(float(self.data_size or la.measured.samples))
        self._prior, self._begun = _number(float(la.prior.values[""])), _number(1.0)
        self.precision = {name: h.clone() for name, h in la.measured.state.items()}
        return la

    @property
    def prior(self) -> float:
        """Λ: as given, or tuned by the evidence of a post-hoc fit."""
        return float(self._prior)

    @property
    def variance(self) -> dict[str, Tensor]:
        """Variances of the weights by name."""
        return {name: (h + self.prior).reciprocal() for name, h in self.precision.items()}

    def sample(self, count: int) -> dict[str, Tensor]:
        """Weights drawn from q, [count, *shape] by name."""
        found: dict[str, Tensor] = {}
        for name, h in self.precision.items():
            mean = self.parameters[name].detach()
            shape = (count, *mean.shape)
            (found[name],) = sample_from_precision(
                [mean.expand(shape).contiguous()],
                [h.expand(shape).contiguous()],
                prior_precision=self.prior,
                generator=self.generator,
            )
        return found

    def draws(self, x: Tensor, samples: int) -> Draws:
        """Latent variables and outputs of drawn networks, all draws in one pass."""
        weights = self.sample(samples)
        latent = drawn_outputs(self.encoder, _of("encoder", weights), x)
        output = drawn_outputs(self.decoder, _of("decoder", weights), latent, each=True)
        return Draws(latent, output)

    def decoded(self, z: Tensor, samples: int) -> Tensor:
        """Outputs of drawn decoders at latent variables z [N, K]."""
        return drawn_outputs(self.decoder, _of("decoder", self.sample(samples)), z)

    @torch.no_grad()
    def latent_linearised(self, x: Tensor) -> Moments:
        """Mean and variance [N, K] of the encoder linearised in its weights."""
        own = _of("encoder", self.variance)
        return Moments(outputs(self.encoder, x), predictive_variance(self.encoder, x, own))

    @torch.no_grad()
    def reconstruct_linearised(self, x: Tensor) -> Moments:
        """Mean and variance [N, *out] of the outputs of the autoencoder linearised in its weights.

        Those of the decoder's own outputs: of logits, for a Bernoulli likelihood.
        """
        return Moments(outputs(self.model, x), predictive_variance(self.model, x, self.variance))

    def state(self) -> dict[str, Tensor]:
        """The precision, and what was chosen for it."""
        found = {f"precision.{name}": h for name, h in self.precision.items()}
        return {**found, "data_size": self._size, "prior": self._prior, "begun": self._begun}

    def settings(self) -> str:
        """The settings that steps depend on."""
        return (
            f"{self.method}, {self.update}, memory {self.memory}, data size {self.data_size}, "
            f"threshold {self.threshold}, curvature at {self.curvature_at}"
        )

    def save(self, path: Any) -> None:
        """Write weights and precision to a safetensors file."""
        checkpoints.save(Path(path), self)

    def load(self, path: Any) -> LaplacianAutoencoder:
        """Read them back, into an autoencoder made with the same networks and settings."""
        checkpoints.load(Path(path), self)
        return self

    def _measuring(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "generator": self.generator}

    def _sample(self, generator: torch.Generator) -> list[Tensor]:
        with torch.no_grad():
            return sample_from_precision(
                list(self.parameters.values()),
                list(self.precision.values()),
                prior_precision=self.prior,
                generator=generator,
            )

    @contextmanager
    def _placed(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Inside, the networks have other weights; their own are restored after."""
        means = [p.data for p in self.parameters.values()]
        try:
            for parameter, value in zip(self.parameters.values(), weights, strict=True):
                parameter.data = value
            yield
        finally:
            for parameter, value in zip(self.parameters.values(), means, strict=True):
                parameter.data = value


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")


class _Reconstructions:
    """Batches (x, x) of a loader's x."""

    def __init__(self, data: Any, model: StochasticAutoencoder) -> None:
        self._data, self._model = data, model

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches_of(self._data):
            x = images_of(batch, self._model)
            yield x, x


def _of(part: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of the encoder or decoder, by their names there."""
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
