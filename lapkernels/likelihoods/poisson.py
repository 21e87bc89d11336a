"""Poisson likelihood: counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lapkernels.likelihoods.independent import IndependentOutputs
from lapkernels.likelihoods.likelihood import (
    FUNCTIONS,
    LOSSES,
    WORDS,
    Likelihood,
    check_all,
)
from lapkernels.ops.base.precision import widened


@dataclass(frozen=True, eq=False)
class Poisson(IndependentOutputs):
    """y ~ Poisson(exp(f)): nll = sum exp(f) - y f, H = diag(exp(f))."""

    def check_values(self, f: Tensor, y: Tensor | None = None) -> None:
        """Rates do not overflow; targets are finite and not negative."""
        check_all("f", f, f.exp().isfinite(), f"the rate exp(f) must be in the range of {f.dtype}")
        if y is not None:
            check_all("y", y, (y >= 0) & y.isfinite(), "counts that are not negative are needed")

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Sum of exp(f) - y f."""
        self.check_shapes(f, y)
        f = widened(f)
        return (f.exp() - y.to(f.dtype) * f).sum()

    def constant(self, f: Tensor, y: Tensor) -> Tensor:
        """Sum of log(y!)."""
        return torch.lgamma(y.double() + 1).sum()

    def score(self, f: Tensor, y: Tensor) -> Tensor:
        """exp(f) - y."""
        self.check_shapes(f, y)
        wide = widened(f)
        return (wide.exp() - y.to(wide.dtype)).to(f.dtype)

    def sample(
        self, f: Tensor, generator: torch.Generator | None = None, y: Tensor | None = None
    ) -> Tensor:
        """Counts in the dtype of f."""
        self.check_shapes(f, y)
        return torch.poisson(widened(f).exp(), generator=generator).to(f.dtype)

    def curvature(self, f: Tensor) -> Tensor:
        """The rate exp(f)."""
        return f.exp()

    def root(self, f: Tensor) -> Tensor:
        """exp(f / 2)."""
        return (0.5 * f).exp()


def _poisson(loss: nn.PoissonNLLLoss) -> Likelihood:
    if not loss.log_input:
        raise ValueError(
            "PoissonNLLLoss has log_input=False: outputs must be log-rates, log_input=True"
        )
    return Poisson()


WORDS["poisson"] = Poisson
LOSSES[nn.PoissonNLLLoss] = _poisson
FUNCTIONS.append((F.poisson_nll_loss, nn.PoissonNLLLoss))
