r"""The transpose of a layer: columns at its output pulled back to its input.

.. math:: s_{in}[i, u] = \sum_{o, t} s_{out}[o, t] \sum_{k : (t, k) \to u} W[o, i, k]

The transpose of a transposed convolution is a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops import serving
from lapkernels.ops.base.correlation import library_input
from lapkernels.ops.base.geometry import (
    Geometry,
    check_rank,
    check_real,
    check_same,
    once_per_size,
)
from lapkernels.ops.base.registration import kernel_for, register

CONV = (F.conv1d, F.conv2d, F.conv3d)
CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def conv_input(s: Tensor, weight: Tensor, input_size: Sequence[int], geometry: Geometry) -> Tensor:
    """Columns [B, I, *input_size] of a convolution (zero padding) from ``s`` [B, O, *out]."""
    if geometry.is_linear or geometry.padding_mode != "zeros":
        raise ValueError(f"{geometry} must be a convolution that pads with zeros")
    check_real("s", s)
    check_same("s", s, weight=weight)
    check_rank("s", s.shape, geometry, 1)
    geometry.check_pair(tuple(input_size), tuple(s.shape[2:]))
    arguments = (s, weight, list(input_size), *geometry.arguments, geometry.transposed)
    run = CONV_INPUT if has_kernel(s, weight, geometry) else _reference
    return run(*arguments)


def has_kernel(like: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    """Whether a kernel serves columns ``like`` these; else torch's convolution does."""
    if serving.conv_input_by_library(weight.shape, geometry.groups):
        return False
    return kernel_for("conv_input", [like, weight]) is not None


def transpose(
    s: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Transposed convolution with a result of ``input_size``, for any padding at the end."""
    dims = len(input_size)
    conv = CONV_TRANSPOSE[dims - 1]
    sizes = (tuple(input_size), s.shape[2:], weight.shape[2:])
    extra = _output_padding(*sizes, tuple(stride), tuple(padding), tuple(dilation))
    if extra is not None:
        return conv(s, weight, None, stride, padding, extra, groups, dilation)
    full = conv(s, weight, None, stride, 0, 0, groups, dilation)
    sides = [
        side
        for d in reversed(range(dims))
        for side in (-padding[d], input_size[d] + padding[d] - full.shape[2 + d])
    ]
    return F.pad(full, sides)


@once_per_size
def _output_padding(
    input_size: Sequence[int],
    positions: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...] | None:
    """torch's output_padding for ``input_size``, or None if there is none."""
    extra = tuple(
        size - ((t - 1) * step - 2 * pad + spread * (k - 1) + 1)
        for size, t, step, pad, spread, k in zip(
            input_size, positions, stride, padding, dilation, kernel_size, strict=True
        )
    )
    fits = all(0 <= e < max(pair) for e, *pair in zip(extra, stride, dilation, strict=True))
    return extra if fits else None


def _reference(
    s: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
) -> Tensor:
    if s.numel() == 0 or weight.numel() == 0 or 0 in input_size:
        shape = _shape(s, weight, input_size, stride, padding, dilation, groups, transposed)
        return s.new_zeros(shape) + 0 * (s.sum() + weight.sum())
    if not transposed:
        return transpose(s, weight, input_size, stride, padding, dilation, groups)
    taps = (input_size, weight.shape[2:], stride, padding, dilation)
    entry, symmetric = library_input(s, *taps)
    conv = CONV[len(input_size) - 1]
    return conv(entry, weight, None, stride, symmetric, dilation, groups)


def _shape(
    s: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
) -> tuple[int, ...]:
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    return (s.shape[0], channels, *input_size)


CONV_INPUT = register(
    "conv_input",
    "Tensor s, Tensor weight, int[] input_size, int[] stride, int[] padding, "
    "int[] dilation, int groups, bool transposed",
    reference=_reference,
    shape=_shape,
)
