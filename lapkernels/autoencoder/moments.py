"""Mean and variance over draws that come a few at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """``mean`` and ``variance`` [N, *shape], entry by entry."""

    mean: Tensor
    variance: Tensor

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        return self.variance.sqrt()


class RunningMoments:
    """Of draws [S, N, *shape] added in parts, by Welford's sums of deviations."""

    def __init__(self) -> None:
        self.count = 0
        self._mean = self._squares = torch.zeros((), device="cpu")

    def add(self, draws: Tensor) -> None:
        """Add draws."""
        more = draws.shape[0]
        mean = draws.mean(0)
        squares = (draws - mean).square().sum(0)
        total = self.count + more
        step = mean - self._mean
        self._squares = self._squares + squares + step.square() * (self.count * more / total)
        self._mean = self._mean + step * (more / total)
        self.count = total

    @property
    def moments(self) -> Moments:
        """The mean, and the unbiased variance; that of a single draw is zero."""
        return Moments(self._mean, self._squares / max(self.count - 1, 1))
