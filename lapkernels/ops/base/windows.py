"""Shared by the ops on receptive-field windows: the entries that a tap joins, and checks.

A window is the part of a tensor that one output pixel can reach. There is one for each sample and
pixel of a tile; these lanes are last in memory, so that a weight is one number for a vector.
Tap k joins entry t of the small window to entry t * stride + k * dilation - offset of the large.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch.nn.functional as F
from torch import Tensor

# The geometry arguments of all ops on windows.
TAPS = "int[] stride, int[] dilation, int[] offset, int groups"


def tap_starts(
    kernel_size: Sequence[int], dilation: Sequence[int], offset: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(k, k * dilation - offset) for every tap."""
    taps = product(*(range(size) for size in kernel_size))
    return [
        (k, tuple(i * step - shift for i, step, shift in zip(k, dilation, offset, strict=True)))
        for k in taps
    ]


def met(
    start: Sequence[int], stride: Sequence[int], count: Sequence[int], size: Sequence[int]
) -> list[range] | None:
    """Those i < count for which start + i * stride lies in [0, size), or None if there are none."""
    found = []
    for first, step, positions, length in zip(start, stride, count, size, strict=True):
        inside = range(max(0, -(first // step)), min(positions, -((first - length) // step)))
        if not inside:
            return None
        found.append(inside)
    return found


def taken(
    tensor: Tensor, start: Sequence[int], stride: Sequence[int], i: Sequence[range]
) -> Tensor:
    """Entries start + i * stride of a window [V, C, *u, L]."""
    slices = [
        slice(first + inside.start * step, first + (inside.stop - 1) * step + 1, step)
        for first, step, inside in zip(start, stride, i, strict=True)
    ]
    return tensor[(slice(None), slice(None), *slices)]


def placed(tensor: Tensor, i: Sequence[range], count: Sequence[int]) -> Tensor:
    """The window [V, C, *count, L] with ``tensor`` at ``i`` and zero elsewhere."""
    sides = [0, 0]
    for inside, size in zip(reversed(i), reversed(count), strict=True):
        sides += [inside.start, size - inside.stop]
    return F.pad(tensor, sides)


def spread(tensor: Tensor, stride: Sequence[int]) -> Tensor:
    """Entry t of a window [V, C, *t, L] moved to t * stride, with zeros in between."""
    for dim, step in enumerate(stride, 2):
        if step > 1:
            behind = tensor.dim() - dim - 1
            apart = F.pad(tensor.unsqueeze(dim + 1), [0, 0] * behind + [0, step - 1])
            reach = max(0, (tensor.shape[dim] - 1) * step + 1)
            tensor = apart.flatten(dim, dim + 1).narrow(dim, 0, reach)
    return tensor


def check_window(name: str, tensor: Tensor, dims: int) -> None:
    """Raise unless ``tensor`` is [V, C, *positions, L] and of a real dtype."""
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype}: a real floating dtype is needed")
    if tensor.dim() != dims + 3:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: {dims + 3} dimensions are needed for a "
            f"{dims}-dimensional kernel, lanes last"
        )


def check_taps(
    kernel_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    offset: Sequence[int],
    groups: int,
) -> None:
    """Raise unless these are the geometry of a kernel of one to three dimensions."""
    dims = len(kernel_size)
    if not 1 <= dims <= 3:
        raise ValueError(f"kernel_size={tuple(kernel_size)} must have one to three entries")
    for name, values in (("stride", stride), ("dilation", dilation), ("offset", offset)):
        if len(values) != dims:
            raise ValueError(f"{name}={tuple(values)} must have {dims} entries")
    for name, values in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)):
        if any(value < 1 for value in values):
            raise ValueError(f"{name}={tuple(values)} must be positive")
    if groups < 1:
        raise ValueError(f"groups={groups} must be positive")
