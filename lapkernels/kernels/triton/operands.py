"""Kernel arguments of tensors: strides, limits and taps, always in three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

Triple = tuple[int, int, int]


class Operand(NamedTuple):
    """A tensor [V, N, C, *grid] and where a kernel reads it: see `read.py`.

    A dimension of one column or sample that stands for all has stride zero.
    """

    data: Tensor
    strides: tuple[int, ...]
    limits: Triple
    origin: Triple


class Taps(NamedTuple):
    """Compile-time constants: taps, step, spread, and dimensions to check."""

    number: Triple
    step: Triple
    spread: Triple
    check: tuple[bool, bool, bool]


ONE_TAP = Taps((1, 1, 1), (1, 1, 1), (0, 0, 0), (False, False, False))


def triple(values: Sequence[int], fill: int) -> Triple:
    """One to three numbers, with `fill` for missing leading dimensions."""
    first, second, third = (*[fill] * (3 - len(values)), *values)
    return first, second, third


def point(tensor: Tensor) -> Operand:
    """A tensor [V, N, C, *grid] without taps."""
    return Operand(tensor, _strides(tensor), triple(tensor.shape[3:], 1), (0, 0, 0))


def window(
    tensor: Tensor,
    positions: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Operand, Taps]:
    """A tensor [V, N, C, *grid] under the taps of a kernel that moves over `positions`."""
    limits = triple(tensor.shape[3:], 1)
    before = triple(padding, 0)
    count, step, spread = triple(kernel_size, 1), triple(stride, 1), triple(dilation, 1)
    last = [
        (t - 1) * s - b + (k - 1) * d
        for t, s, b, k, d in zip(triple(positions, 1), step, before, count, spread, strict=True)
    ]
    check = [b > 0 or end >= size for b, end, size in zip(before, last, limits, strict=True)]
    origin = (-before[0], -before[1], -before[2])
    operand = Operand(tensor, _strides(tensor), limits, origin)
    return operand, Taps(count, step, spread, (check[0], check[1], check[2]))


def index_type(*tensors: Tensor, count: int = 0) -> Any:
    """int64 if an offset into a tensor, or a count, is beyond 32 bits; else int32."""
    reach = [sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) for t in tensors]
    # The margin is for the masked end of the last tile.
    return tl.int64 if max(*reach, count) >= 2**31 - 2**20 else tl.int32


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums: float32 for half precision."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _strides(tensor: Tensor) -> tuple[int, ...]:
    v, n, c, *grid = (
        0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (v, n, c, *triple(grid, 0))
