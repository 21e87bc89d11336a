r"""A = \sum_{n, t} x x^T of patches x for each group, or of x summed over t first (reduce)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from lapkernels.kernels.triton.operands import ONE_TAP, point, triple, window
from lapkernels.kernels.triton.phases import phases
from lapkernels.kernels.triton.position_products import position_products
from lapkernels.kernels.triton.position_sums import position_sums


def kronecker_input(
    out: Tensor,
    decay: float,
    scale: float,
    x: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    reduce: bool,
    bias: bool,
) -> None:
    """out <- decay * out + scale * A; arguments as the registered op's."""
    taps = (kernel_size, stride, padding, dilation)
    channels = x.shape[1] // groups
    if reduce:
        sums = position_sums(x[None], output_size, *taps, transposed)
        if bias:
            # The one at the end of a patch (bias), summed over positions.
            rows = sums.unflatten(1, (groups, -1))
            ones = rows.new_full((*rows.shape[:2], 1), float(prod(output_size)))
            sums = torch.cat([rows, ones], 2).flatten(1)
        entry = sums.reshape(1, sums.shape[0], sums.shape[1], 1)
        operand, sizes, relation = (point(entry), ONE_TAP), (1, 1, 1), None
        channels = sums.shape[1] // groups
    elif transposed:
        relation = phases(kernel_size, stride, dilation), triple(padding, 0)
        check = ONE_TAP._replace(spread=relation[0].spread, check=(True, True, True))
        operand, sizes = (point(x[None]), check), triple(output_size, 1)
    else:
        operand, sizes, relation = window(x[None], output_size, *taps), triple(output_size, 1), None
    position_products(
        out,
        decay,
        scale,
        operand,
        operand,
        (channels, channels),
        sizes,
        groups,
        symmetric=True,
        ones=bias and not reduce,
        transposed=relation,
    )
