"""Bernoulli likelihood: binary and multi-label classification."""

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
class Bernoulli(IndependentOutputs):
    """P(y = 1) = sigmoid(f), one logit each: H = diag(p (1 - p)). Targets may lie in [0, 1]."""

    def check_values(self, f: Tensor, y: Tensor | None = None) -> None:
        """Targets lie in [0, 1]."""
        if y is not None:
            check_all("y", y, (y >= 0) & (y <= 1), "targets in [0, 1] are needed")

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Sum of log(1 + exp(f)) - y f."""
        self.check_shapes(f, y)
        f = widened(f)
        return F.binary_cross_entropy_with_logits(f, y.to(f.dtype), reduction="sum")

    def score(self, f: Tensor, y: Tensor) -> Tensor:
        """p - y, as p (1 - y) - (1 - p) y: nothing cancels where p is close to y."""
        self.check_shapes(f, y)
        wide = widened(f)
        y = y.to(wide.dtype)
        return (wide.sigmoid() * (1 - y) - wide.neg().sigmoid() * y).to(f.dtype)

    def sample(
        self, f: Tensor, generator: torch.Generator | None = None, y: Tensor | None = None
    ) -> Tensor:
        """Zeros and ones in the dtype of f."""
        self.check_shapes(f, y)
        return torch.bernoulli(widened(f).sigmoid(), generator=generator).to(f.dtype)

    def curvature(self, f: Tensor) -> Tensor:
        """p (1 - p)."""
        return f.sigmoid() * f.neg().sigmoid()

    def root(self, f: Tensor) -> Tensor:
        """sqrt(p (1 - p))."""
        return (0.5 * (F.logsigmoid(f) + F.logsigmoid(-f))).exp()


def _binary_cross_entropy(loss: nn.BCEWithLogitsLoss) -> Likelihood:
    for option in ("weight", "pos_weight"):
        if getattr(loss, option) is not None:
            raise ValueError(
                f"BCEWithLogitsLoss has a {option}, which Bernoulli does not have; for few outputs "
                "pass LossFunction with a loss that sums"
            )
    return Bernoulli()


WORDS.update(bernoulli=Bernoulli, multilabel=Bernoulli)
LOSSES[nn.BCEWithLogitsLoss] = _binary_cross_entropy
FUNCTIONS.append((F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss))
