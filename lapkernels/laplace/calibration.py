"""Calibration errors: predicted probabilities against observed frequencies.

Negative log-likelihood, Brier score and AUROC are in scikit-learn: ``log_loss``,
``brier_score_loss`` and ``roc_auc_score``.
"""

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
    def expected_error(self) -> float:
        """ECE: the gap between confidence and accuracy, averaged over samples."""
        return float((self._gap * self.count).sum() / self.count.sum())

    @property
    def root_mean_squared_error(self) -> float:
        """RMSCE: the same in root mean square."""
        return float(((self._gap.square() * self.count).sum() / self.count.sum()).sqrt())

    @property
    def maximum_error(self) -> float:
        """MCE: the largest gap of a bin that holds samples."""
        return float(self._gap.max())


def calibration(probabilities: Tensor, y: Tensor, bins: int = 15) -> Calibration:
    """Calibration of class probabilities [N, C] against labels [N]."""
    if probabilities.dim() != 2 or y.shape != probabilities.shape[:1]:
        raise ValueError(
            f"probabilities {tuple(probabilities.shape)} and y {tuple(y.shape)}: [N, C] and [N]"
        )
    confidence, predicted = probabilities.double().max(1)
    right = (predicted == y).double()
    index = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    count = right.new_zeros(bins).index_add_(0, index, torch.ones_like(right))
    held = count.clamp_min(1)
    total = torch.zeros_like(count)
    return Calibration(
        total.index_add(0, index, confidence) / held, total.index_add(0, index, right) / held, count
    )
