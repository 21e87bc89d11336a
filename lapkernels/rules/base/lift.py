"""A weight as a value of the samples: repeated for each, or unchanged in a batch of one.

The Jacobian of the weight is then the column, summed over the repeated dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, Rule
from lapkernels.rules.base.samples import Samples, follow
from lapkernels.rules.base.uses import ScaleUse


class Lift(Rule):
    """out = weight, expanded; ``samples`` says where the result holds the samples."""

    reads_input = False

    def __init__(self, call: Call, weight: Operand, *args: Any, samples: Samples) -> None:
        super().__init__()
        self.samples = (samples,)
        self.uses = {0: ScaleUse(weight.shape, samples)}

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        return None

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        return None


def expanded_samples(weight: Sequence[int], out: Sequence[int], count: int) -> Samples | None:
    """Where an expanded weight has one copy for each sample, if it has."""
    new = len(out) - len(weight)
    for dim, size in enumerate(out):
        if size == count and (dim < new or weight[dim - new] == 1):
            return follow(1, out) if count == 1 else Samples(count, dim)
    return None
