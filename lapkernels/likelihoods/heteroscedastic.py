"""Gaussian likelihood whose noise is an output too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lapkernels.likelihoods.independent import IndependentOutputs
from lapkernels.likelihoods.likelihood import (
    FUNCTIONS,
    LOSSES,
    WORDS,
    check_all,
    check_finite,
    check_output,
    check_target,
    class_dim,
)
from lapkernels.ops.base.precision import widened


@dataclass(frozen=True, eq=False)
class HeteroscedasticGaussian(IndependentOutputs):
    """y ~ N(m, exp(l)) where f holds m in the first half of ``dim`` and l in the second.

    nll = sum (l + (y - m)² exp(-l)) / 2. H is the Fisher information in (m, l),
    diag(exp(-l), 1/2): the expectation of the nll's Hessian over y. The Hessian itself is not
    positive semi-definite, as the nll is not convex in (m, l).
    """

    dim: int = 1

    def check_shapes(self, f: Tensor, y: Tensor | None = None) -> None:
        """``dim`` of f is even, and that of y half of it."""
        check_output(f)
        dim = class_dim(f, self.dim)
        size = f.shape[dim]
        if size % 2:
            raise ValueError(
                f"f has {size} entries along dim = {self.dim}: an even number is needed, means "
                "first and log-variances second"
            )
        shape = (*f.shape[:dim], size // 2, *f.shape[dim + 1 :])
        check_target(f, y, shape, "targets have the shape of the means,")

    def check_values(self, f: Tensor, y: Tensor | None = None) -> None:
        """Variances neither overflow nor vanish; targets are finite."""
        wide = widened(f)
        _, log_variance = self._halves(wide)
        good = log_variance.exp().isfinite() & log_variance.neg().exp().to(f.dtype).isfinite()
        check_all("log-variance of f", log_variance, good, f"its exp must be in {f.dtype}'s range")
        if y is not None:
            check_finite("y", y)

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Sum of (l + (y - m)² exp(-l)) / 2."""
        self.check_shapes(f, y)
        mean, log_variance = self._halves(widened(f))
        residual = mean - y.to(mean.dtype)
        return 0.5 * (log_variance + residual.square() * log_variance.neg().exp()).sum()

    def constant(self, f: Tensor, y: Tensor) -> Tensor:
        """log(2 pi) / 2 for each target."""
        total = 0.5 * math.log(2 * math.pi) * y.numel()
        return torch.tensor(total, dtype=torch.float64, device=f.device)

    def score(self, f: Tensor, y: Tensor) -> Tensor:
        """((m - y) exp(-l), (1 - (m - y)² exp(-l)) / 2)."""
        self.check_shapes(f, y)
        mean, log_variance = self._halves(widened(f))
        residual = mean - y.to(mean.dtype)
        of_mean = residual * log_variance.neg().exp()
        return torch.cat([of_mean, 0.5 - 0.5 * residual * of_mean], self.dim).to(f.dtype)

    def sample(
        self, f: Tensor, generator: torch.Generator | None = None, y: Tensor | None = None
    ) -> Tensor:
        """m + exp(l / 2) e with e standard normal."""
        self.check_shapes(f, y)
        mean, log_variance = self._halves(widened(f))
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=f.device)
        return (mean + (0.5 * log_variance).exp() * noise).to(f.dtype)

    def curvature(self, f: Tensor) -> Tensor:
        """(exp(-l), 1/2)."""
        _, log_variance = self._halves(f)
        return torch.cat([log_variance.neg().exp(), torch.full_like(log_variance, 0.5)], self.dim)

    def root(self, f: Tensor) -> Tensor:
        """(exp(-l / 2), sqrt(1/2))."""
        _, log_variance = self._halves(f)
        return torch.cat(
            [(-0.5 * log_variance).exp(), torch.full_like(log_variance, 0.5**0.5)], self.dim
        )

    def _halves(self, f: Tensor) -> tuple[Tensor, Tensor]:
        half = f.shape[self.dim] // 2
        return f.narrow(self.dim, 0, half), f.narrow(self.dim, half, half)


def _gaussian(loss: nn.GaussianNLLLoss) -> HeteroscedasticGaussian:
    raise ValueError(
        "GaussianNLLLoss takes the variance as a third argument: use HeteroscedasticGaussian, for "
        "outputs that hold means and log-variances"
    )


WORDS["heteroscedastic"] = HeteroscedasticGaussian
LOSSES[nn.GaussianNLLLoss] = _gaussian
FUNCTIONS.append((F.gaussian_nll_loss, nn.GaussianNLLLoss))
