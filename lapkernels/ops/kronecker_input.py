r"""Kronecker factor of a layer's input: second moments of its patches.

expand: :math:`A = \sum_n \sum_t x_{n,t} x_{n,t}^T`, reduce: :math:`A = \sum_n \bar x_n \bar x_n^T`
with :math:`\bar x_n = \sum_t x_{n,t}`, and :math:`x_{n,t}` column t of the unfolded input, one
factor a group. For averages over samples or positions pass ``scale``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops import serving
from lapkernels.ops.base.geometry import (
    Geometry,
    channels_first,
    check_groups,
    check_rank,
    check_real,
    is_pointwise,
    once_per_size,
    pad_input,
)
from lapkernels.ops.base.registration import Computed, register
from lapkernels.ops.unfolded import patches


def kronecker_input(
    x: Tensor,
    geometry: Geometry,
    *,
    reduce: bool = False,
    bias: bool = False,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """A [groups, I / groups * K, I / groups * K] of ``x`` [N, I, *in] ([N, ..., I] for Linear).

    ``bias`` appends a one to every patch, for a factor of weight and bias together.
    With ``out`` the result is ``out <- decay * out + scale * A``, in place.
    """
    check_real("x", x)
    check_rank("x", x.shape, geometry, 1)
    x, geometry = pad_input(x, geometry)
    entry = channels_first(x, geometry, 1)
    arguments = (entry, _positions(entry.shape, geometry), geometry.taps, *geometry.arguments)
    flags = (geometry.transposed, reduce, bias)
    return _op(*arguments, *flags, out=out, decay=decay, scale=scale)


@once_per_size
def _positions(x: torch.Size, geometry: Geometry) -> list[int]:
    """Spatial size of the layer's output for an input of shape ``x``, after checks."""
    check_groups(x[1], "x", geometry.groups)
    size = tuple(x[2:])
    positions = list(size if geometry.is_linear else geometry.output_size(size))
    if any(length < 0 for length in positions):
        raise ValueError(f"x of spatial size {size} is smaller than the kernel's reach")
    return positions


def _reference(
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
) -> Tensor:
    rows = patches(x, output_size, kernel_size, stride, padding, dilation, groups, transposed)
    if bias:
        rows = torch.cat([rows, rows.new_ones(*rows.shape[:3], 1)], 3)
    rows = rows.sum(2) if reduce else rows.transpose(1, 2).flatten(0, 1)
    return torch.einsum("rga,rgb->gab", rows, rows)


def _library(
    x: Tensor, output_size: Sequence[int], kernel_size: Sequence[int], *rest: Any
) -> Computed:
    """For layers whose patches are the input's own positions."""
    stride, padding, _, groups, _, reduce, bias = rest
    if bias or not is_pointwise(kernel_size, stride, padding, groups):
        return None
    if list(x.shape[2:]) != list(output_size) or (reduce and x.shape[2:].numel() > 1):
        return None
    return moments_by_library(x.flatten(2))


def moments_by_library(x: Tensor) -> Computed:
    """sum_{n,t} x_{n,t} x_{n,t}^T [1, I, I] of ``x`` [N, I, T]; None where a kernel serves."""
    count, features, positions = x.shape
    rows = x.mT
    if rows.is_contiguous():
        if not serving.row_moments_by_library(count * positions, features):
            return None
        flat = rows.reshape(-1, features)
        return lambda: (flat.T @ flat).unsqueeze(0)
    if serving.channel_moments_by_library(features, positions):
        return lambda: torch.bmm(x, rows).sum(0, keepdim=True)
    return None


def _shape(
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
) -> tuple[int, ...]:
    features = x.shape[1] // groups
    for k in kernel_size:
        features *= k
    return (groups, features + bias, features + bias)


_op = register(
    "kronecker_input",
    "Tensor x, int[] output_size, int[] kernel_size, int[] stride, int[] padding, "
    "int[] dilation, int groups, bool transposed, bool reduce, bool bias",
    reference=_reference,
    shape=_shape,
    library=_library,
)
