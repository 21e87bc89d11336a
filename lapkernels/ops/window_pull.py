r"""Columns that start at one output pixel each, pulled back through a layer as windows.

For a convolution, whose output lives on the small grid,

.. math:: \mathrm{out}[v, b, u, l] = f[b, u, l] \sum_{a,k,t} W[a, b, k] \, s[v, a, t, l]
          \quad\text{over}\quad t \cdot \mathrm{stride} + k \cdot \mathrm{dilation}
          - \mathrm{offset} = u,

and for a transposed convolution, whose output lives on the large grid,

.. math:: \mathrm{out}[v, a, t, l] = f[a, t, l] \sum_{b,k} W[a, b, k] \, s[v, b,
          t \cdot \mathrm{stride} + k \cdot \mathrm{dilation} - \mathrm{offset}, l],

with one lane l for each sample and output pixel, and zero outside the window s.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.ops.base.geometry import check_groups, check_same, check_shape
from lapkernels.ops.base.registration import register
from lapkernels.ops.base.windows import (
    TAPS,
    check_taps,
    check_window,
    met,
    placed,
    spread,
    taken,
    tap_starts,
)


def window_pull(
    s: Tensor,
    weight: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    offset: Sequence[int],
    groups: int = 1,
    transposed: bool = False,
    factor: Tensor | None = None,
) -> Tensor:
    """Windows [V, I, *size, L] at a layer's input from ``s`` [V, O, *positions, L] at its output.

    ``weight`` is the layer's own, [A, B / groups, *kernel_size]. ``factor`` [I, *size, L] scales
    the result, equally for all columns: the derivative of the activation below, and zero outside of
    the image.
    """
    kernel_size = weight.shape[2:]
    if not 3 <= weight.dim() <= 5:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: 3 to 5 dimensions are needed")
    check_taps(kernel_size, stride, dilation, offset, groups)
    check_window("s", s, len(kernel_size))
    check_same("s", s, weight=weight, factor=factor)
    check_groups(weight.shape[0], "weight", groups)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if s.shape[1] != channels:
        raise ValueError(
            f"s has {s.shape[1]} channels, but weight of shape {tuple(weight.shape)} with "
            f"groups={groups} makes {channels}"
        )
    if len(size) != len(kernel_size) or any(length < 0 for length in size):
        raise ValueError(
            f"size={tuple(size)} must have {len(kernel_size)} entries, none of them negative"
        )
    arguments = (list(size), list(stride), list(dilation), list(offset), groups, transposed)
    if factor is not None:
        check_shape("factor", factor, _shape(s, weight, *arguments)[1:])
    return _op(s, weight, *arguments, factor)


def _reference(
    s: Tensor,
    weight: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    offset: Sequence[int],
    groups: int,
    transposed: bool,
    factor: Tensor | None,
) -> Tensor:
    shape = _shape(s, weight, size, stride, dilation, offset, groups, transposed)
    grouped = weight.unflatten(0, (groups, -1))
    if not transposed:
        # Zeros between the entries of s make this a gather as well, at u + offset - k * dilation.
        s, stride = spread(s, stride), [1] * len(stride)
    value = s.new_zeros(shape)
    for k, start in tap_starts(weight.shape[2:], dilation, offset):
        if not transposed:
            start = tuple(-first for first in start)
        i = met(start, stride, size, s.shape[2:-1])
        if i is None or 0 in value.shape:
            continue
        source = taken(s, start, stride, i).unflatten(1, (groups, -1))
        tap = grouped[(..., *k)]
        formula = "vgb...,gab->vga..." if transposed else "vga...,gab->vgb..."
        value = value + placed(torch.einsum(formula, source, tap).flatten(1, 2), i, size)
    return value if factor is None else value * factor


def _shape(
    s: Tensor,
    weight: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    offset: Sequence[int],
    groups: int,
    transposed: bool,
    *rest: object,
) -> tuple[int, ...]:
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    return (s.shape[0], channels, *size, s.shape[-1])


_op = register(
    "window_pull",
    f"Tensor s, Tensor weight, int[] size, {TAPS}, bool transposed, Tensor? factor",
    reference=_reference,
    shape=_shape,
)
