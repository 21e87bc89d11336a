r"""B = \sum_{v, n, t} s s^T for each group, or of s summed over t first (reduce)."""

from __future__ import annotations

from torch import Tensor

from lapkernels.kernels.triton.operands import ONE_TAP, point, triple
from lapkernels.kernels.triton.position_products import position_products
from lapkernels.kernels.triton.position_sums import position_sums


def kronecker_output(
    out: Tensor, decay: float, scale: float, s: Tensor, groups: int, reduce: bool
) -> None:
    """out <- decay * out + scale * B; arguments as the registered op's."""
    channels = s.shape[2] // groups
    if reduce:
        one = [1] * (s.dim() - 3)
        sums = position_sums(s, s.shape[3:], one, one, [0] * len(one), one, False)
        s = sums.reshape(1, sums.shape[0], sums.shape[1], 1)
    operand = (point(s), ONE_TAP)
    both = (channels, channels)
    sizes = triple(s.shape[3:], 1)
    position_products(out, decay, scale, operand, operand, both, sizes, groups, symmetric=True)
