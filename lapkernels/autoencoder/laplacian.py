"""Laplacian autoencoders: a Gaussian over the weights, trained online."""

from __future__ import annotations

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
from lapkernels.ops import precision_update, sample_from_precision

CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


class LaplacianAutoencoder(StochasticAutoencoder):
    r"""q_t = N(θ_t, (H_t + Λ)⁻¹) over all weights of an autoencoder (Miani et al., 2022).

    .. code-block:: python

        ae = lk.LaplacianAutoencoder(encoder, decoder).fit(loader, epochs=20)
        found = ae.reconstruct(x)
        found.mean, found.variance

    Every step draws weights from q_t, takes the gradient of -log p(x | θ) there for the optimiser
    of the mean θ_t, and adds the diagonal of Jᵀ Σ⁻¹ J to the precision, by the rule ``update``
    with the factor α = ``memory``: see :func:`decay_and_scale`. Both come from one forward pass.

    ``method`` is one of ``lk.diag``: by default exact for networks without convolutions, and mixed
    for those with, exact at values of at most ``threshold`` features. ``curvature_at="mean"``
    measures it at θ_t instead of the draw, for a forward pass more. The precision starts at
    ``initial_precision`` H₀; ``prior`` is Λ, a number that is never forgotten, and whose gradient
    Λθ the mean sees. With ``data_size`` N the curvature of a batch of B counts N/B times.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        method: Method | None = None,
        update: Update = "online",
        memory: float = 1e-4,
        *,
        initial_precision: float = 1.0,
        prior: float = 0.0,
        data_size: int | None = None,
        threshold: float = 64,
        curvature_at: Literal["sample", "mean"] = "sample",
        **options: Any,
    ) -> None:
        super().__init__(encoder, decoder, **options)
        self.update: Update = update
        self.memory = memory
        self.decay, self.scale = decay_and_scale(update, memory)
        convolutional = any(isinstance(m, CONVOLUTIONS) for m in self.model.modules())
        self.method: Method = method or ("mixed" if convolutional else "exact")
        if self.method == "hessian":
            raise ValueError("method='hessian' may be negative: no precision; use a Gauss-Newton")
        if not initial_precision >= 0 or not prior >= 0 or not initial_precision + prior > 0:
            raise ValueError(
                f"initial_precision={initial_precision} and prior={prior}: neither may be "
                "negative, and one of them must be positive"
            )
        if update == "redux" and not prior > 0:
            raise ValueError("update='redux' forgets all but the last batch: it needs prior > 0")
        if prior and data_size is None:
            raise ValueError("prior > 0 needs data_size, the number of samples it is weighed with")
        if data_size is not None and data_size < 1:
            raise ValueError(f"data_size={data_size}: a number of samples is needed")
        if curvature_at not in ("sample", "mean"):
            raise ValueError(f"curvature_at={curvature_at!r} must be 'sample' or 'mean'")
        self.prior, self.data_size, self.threshold = prior, data_size, threshold
        self.curvature_at = curvature_at
        self.precision = {
            name: torch.full_like(p, initial_precision, requires_grad=False)
            for name, p in self.parameters.items()
        }

    @rolled_back
    def step(self, x: Tensor) -> Tensor:
        """Draw weights, step the mean, update the precision; -log p(x | θ) of a sample."""
        names, count = list(self.parameters), len(x)
        with self._placed(self._sample(self.generator)):
            loss, gradient, diagonal = gradient_and_diag(
                self.model, (x, x), self.likelihood, self.method, **self._measuring()
            )
        if self.curvature_at == "mean":
            diagonal = diag(self.model, (x, x), self.likelihood, self.method, **self._measuring())
        for name, parameter in self.parameters.items():
            parameter.grad = gradient[name].div_(count)
            if self.prior:
                assert self.data_size is not None
                parameter.grad.add_(parameter.detach(), alpha=self.prior / self.data_size)
        self.optimizer.step()
        self.optimizer.zero_grad()
        weight = 1.0 if self.data_size is None else self.data_size / count
        precision_update(
            [self.precision[name] for name in names],
            [diagonal[name] for name in names],
            self.decay,
            self.scale * weight,
        )
        return loss / count

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
            la.tune("evidence", noise=False)
        # The prior is added where the precision is used.
        variances = la.posterior.variance()
        self.precision = {name: v.reciprocal() - self.prior for name, v in variances.items()}
        return la

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
        """The precision."""
        return {f"precision.{name}": h for name, h in self.precision.items()}

    def settings(self) -> str:
        """The settings that steps depend on."""
        return (
            f"{self.method}, {self.update}, memory {self.memory}, prior {self.prior}, data size "
            f"{self.data_size}, threshold {self.threshold}, curvature at {self.curvature_at}"
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
