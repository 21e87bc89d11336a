r"""D[a, p] = \sum_{n, t} small[n, a, t] large[n, p, t], one of them squared, p = (b, tap)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapkernels.kernels.triton.operands import ONE_TAP, point, triple, window
from lapkernels.kernels.triton.position_products import position_products


def squared_conv_weight(
    out: Tensor,
    decay: float,
    scale: float,
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    square_small: bool,
) -> None:
    """out <- decay * out + scale * D; arguments as the registered op's."""
    taps = (small.shape[3:], kernel_size, stride, padding, dilation)
    position_products(
        out,
        decay,
        scale,
        (point(small), ONE_TAP),
        window(large, *taps),
        (small.shape[2] // groups, large.shape[2] // groups),
        triple(small.shape[3:], 1),
        groups,
        square=(square_small, not square_small),
    )
