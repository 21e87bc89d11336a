"""Calibration errors: predicted probabilities against observed frequencies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Calibration:
    """Confidence and accuracy in bins of equal width of the largest probability, each [bins]."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def _gap(self) -> Tensor:
        return (self.confidence - self.accuracy).abs()

    @property
    def ece(self) -> float:
        """Expected calibration error: the gap of confidence and accuracy, averaged over samples."""
        return float((self._gap * self.count).sum() / self.count.sum())

    @property
    def rmsce(self) -> float:
        """The same in root mean square."""
        return float(((self._gap.square() * self.count).sum() / self.count.sum()).sqrt())

    @property
    def mce(self) -> float:
        """Maximum calibration error: the largest gap of a bin that holds samples."""
        return float(self._gap.max())


def calibration(probabilities: Tensor, y: Tensor, bins: int = 15) -> Calibration:
    """Calibration of class probabilities [N, C] against labels [N]."""
    if probabilities.dim() != 2 or y.shape != probabilities.shape[:1]:
        raise ValueError(
            f"probabilities {tuple(probabilities.shape)} and y {tuple(y.shape)}: [N, C] and [N]"
        )
    confidence, predicted = probabilities.max(1)
    return of_confidence(confidence, predicted == y, bins)


def of_confidence(confidence: Tensor, right: Tensor, bins: int = 15) -> Calibration:
    """Calibration of predictions of a confidence [N] in (0, 1] that are right or not [N]."""
    confidence, right = confidence.double(), right.double()
    index = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    count = right.new_zeros(bins).index_add_(0, index, torch.ones_like(right))
    held = count.clamp_min(1)
    total = torch.zeros_like(count)
    return Calibration(
        total.index_add(0, index, confidence) / held, total.index_add(0, index, right) / held, count
    )


def auroc(low: Tensor, high: Tensor) -> float:
    """The probability that a score of ``high`` [M] exceeds one of ``low`` [N]; ties count half."""
    scores = torch.cat([low, high]).double()
    _, inverse, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[inverse]
    size = len(high)
    return float((ranks[len(low) :].sum() - size * (size + 1) / 2) / (size * len(low)))
