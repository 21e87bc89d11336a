r"""Variational Laplace: the expected log-likelihood of a mean-field posterior without sampling it.

With g̃ the gradient of -log p(ỹ | x, μ) of a batch of S samples at labels ỹ drawn from the model,
the loss of the batch out of N samples is

.. math:: -\frac1S \log p(y \mid x, \mu) + \frac1{2S} \sum_p \sigma_p^2 \tilde g_p^2
          + \frac{\beta}{N} KL(q \,|\, p),

since E[g̃²] is the diagonal of the Fisher information, the curvature by which the log-likelihood
falls off around μ.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Batch
from lapkernels.curvature.data.freed_memory import keep_freed_memory
from lapkernels.ops import squared_gradient_sum
from lapkernels.variational.difference import fit_by_difference
from lapkernels.variational.hessian import hessian_diagonal
from lapkernels.variational.mean_field import MeanField
from lapkernels.variational.per_sample import SampleUses
from lapkernels.variational.second_derivatives import lean_second_derivatives

_KINKED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Hardtanh, nn.Hardsigmoid)


class VariationalLaplace(MeanField):
    """``loss(x, y)`` is the objective above; ``backward`` gives gradients of μ and log σ.

    ``curvature`` chooses g̃². "batch": the squared gradient of the whole batch.
    "samples": Σ_n g̃_n², each sample's own; labels are drawn independently, so both have the same
    expectation, and this one less variance, but samples must not depend on each other. "hessian":
    the diagonal of the Hessian of -log p(y | x, μ), for comparison on small networks: where it is
    negative, nothing stops σ from growing.

    ``route`` says how g̃² is differentiated in μ: "exact" by double backward, at the cost of about
    three plain training steps; "difference" by the difference of the gradients at μ and at a
    distance ``step`` times the length of μ, at the cost of two.
    """

    def __init__(
        self,
        *args: Any,
        curvature: Literal["batch", "samples", "hessian"] = "batch",
        route: Literal["exact", "difference"] = "exact",
        step: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if curvature not in ("batch", "samples", "hessian"):
            raise ValueError(
                f"curvature = {curvature!r}: 'batch', 'samples' or 'hessian' is needed"
            )
        if route not in ("exact", "difference"):
            raise ValueError(f"route = {route!r}: 'exact' or 'difference' is needed")
        if route == "difference" and curvature != "batch":
            raise ValueError(f"curvature={curvature!r} has the route 'exact' only")
        if step is not None and not step > 0:
            raise ValueError(f"step = {step}: it must be positive")
        self.curvature, self.route, self.step = curvature, route, step
        _warn_of_kinks(self.model)
        if route == "exact":
            keep_freed_memory()

    def fit(self, batch: Batch) -> Tensor:
        """-log p(y | x, μ) + ½ sum σ² g̃²."""
        with torch.enable_grad():
            return self._difference(batch) if self.route == "difference" else self._exact(batch)

    def _exact(self, batch: Batch) -> Tensor:
        uses = SampleUses(dict(zip(self.names, self.means, strict=True)))
        with lean_second_derivatives(), uses if self.curvature == "samples" else nullcontext():
            f = self.outputs(batch)
        observed = self.observed(f, batch)
        if self.curvature == "hessian":
            penalty = self._weighted(hessian_diagonal(observed, self.means))
        elif self.curvature == "samples":
            penalty = self._weighted(uses.squared_gradients(self._drawn(f, batch)))
        else:
            gradient = torch.autograd.grad(
                self._drawn(f, batch), self.means, create_graph=True, materialize_grads=True
            )
            penalty = squared_gradient_sum(gradient, list(self.log_std))
        return observed + 0.5 * penalty

    def _weighted(self, diagonal: Sequence[Tensor]) -> Tensor:
        """sum_p σ_p² d_p."""
        pairs = zip(self.log_std, diagonal, strict=True)
        return torch.stack([((2 * log_std).exp() * d).sum() for log_std, d in pairs]).sum()

    def _drawn(self, f: Tensor, batch: Batch) -> Tensor:
        return self.likelihood.nll(f, self._labels(f, batch))

    def _difference(self, batch: Batch) -> Tensor:
        labels: Tensor | None = None

        def losses(weights: dict[str, Tensor] | None) -> tuple[Tensor, Tensor]:
            nonlocal labels
            f = self.outputs(batch, weights)
            labels = self._labels(f, batch) if labels is None else labels
            return self.observed(f, batch), self.likelihood.nll(f, labels)

        return fit_by_difference(self.model, losses, self.names, list(self.log_std), self.step)

    @torch.no_grad()
    def _labels(self, f: Tensor, batch: Batch) -> Tensor:
        return self.likelihood.sample(f, self.generator, batch.target)


def _warn_of_kinks(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _KINKED):
            warnings.warn(
                f"{name or 'the model'} ({type(module).__name__}) is piecewise linear: its second "
                "derivative is a spike that gradients never see, so the squared gradients are not "
                "kept small through it. Use a smooth activation such as softplus, SiLU or GELU",
                stacklevel=3,
            )
            return
