r"""Patches of a layer's input summed over its positions: \bar x[n, i, k] = \sum_t X[n, i, k, t].

A sum over positions of the small grid, in which a tap counts where it falls inside of the large
one: a convolution reads its input there, a transposed convolution reads it on the small grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton.launch import TYPES, Kernel, Tile
from lapkernels.kernels.triton.operands import (
    index_type,
    sum_dtype,
    triple,
    window,
)
from lapkernels.kernels.triton.read import along_indices, along_positions, load


@triton.jit
def position_sums_kernel(
    x,
    limits,
    sums,
    row_stride,
    index_count,
    positions,
    sizes,
    columns_v,
    TAPS: tl.constexpr,
    ON_SMALL: tl.constexpr,
    SUM: tl.constexpr,
    INDEX: tl.constexpr,
    INDICES: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Grid: blocks of indices (channel, tap) of all samples. `limits` are the large grid's."""
    blocks = tl.cdiv(index_count, INDICES)
    sample = (tl.program_id(0) // blocks).to(INDEX)
    index = (tl.program_id(0) % blocks).to(INDEX) * INDICES + tl.arange(0, INDICES).to(INDEX)
    inside = (index < index_count)[:, None]
    taps = TAPS[0][0] * TAPS[0][1] * TAPS[0][2]
    side = along_indices(index[:, None], 0, TAPS[0], x.strides, TAPS[2])
    if ON_SMALL:
        side = ((index // taps * x.strides[2])[:, None], side[1], side[2], side[3])
    data = x.data + (sample // columns_v) * x.strides[1] + (sample % columns_v) * x.strides[0]
    total = tl.zeros((INDICES, POSITIONS), SUM)
    for first in range(0, positions, POSITIONS):
        flat = (first + tl.arange(0, POSITIONS).to(INDEX))[None, :]
        place = along_positions(flat, sizes, x.origin, x.strides, TAPS[1])
        if ON_SMALL:
            rest = flat // sizes[2]
            offset = rest // sizes[1] * x.strides[3] + rest % sizes[1] * x.strides[4]
            place = (offset + flat % sizes[2] * x.strides[5], place[1], place[2], place[3])
        total += load(data, limits, place, side, inside & (flat < positions), TAPS[3]).to(SUM)
    offset = sample * row_stride + index
    tl.store(sums + offset, tl.sum(total, 1), mask=index < index_count)


_TILES = (
    Tile({"INDICES": 16, "POSITIONS": 128}, 4, 2),
    Tile({"INDICES": 4, "POSITIONS": 256}, 4, 2),
)

POSITION_SUMS = Kernel(
    position_sums_kernel,
    key=("index_count", "positions"),
    nvidia=_TILES,
    amd=_TILES,
    interpreter={"INDICES": 64, "POSITIONS": 256},
)


def position_sums(
    x: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
) -> Tensor:
    """Sums [V * N, C * K] over positions of patches of ``x`` [V, N, C, *in], n the slow index."""
    count = x.shape[2] * prod(kernel_size)
    sums = torch.empty(x.shape[0] * x.shape[1], count, dtype=sum_dtype(x.dtype), device=x.device)
    small = x.shape[3:] if transposed else output_size
    operand, taps = window(x, small, kernel_size, stride, padding, dilation)
    if transposed:
        taps = taps._replace(check=(True, True, True))
    POSITION_SUMS.launch(
        lambda constants: (triton.cdiv(count, constants["INDICES"]) * sums.shape[0],),
        x=operand,
        limits=triple(output_size if transposed else x.shape[3:], 1),
        sums=sums,
        row_stride=count,
        index_count=count,
        positions=prod(small),
        sizes=triple(small, 1),
        columns_v=x.shape[0],
        TAPS=tuple(taps),
        ON_SMALL=transposed,
        SUM=TYPES[sums.dtype],
        INDEX=index_type(x, sums),
    )
    return sums
