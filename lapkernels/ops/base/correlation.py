"""Shared by the ops on a layer's weight: windows of the large grid, shapes, checks, bias."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops.base.chunks import row_chunks
from lapkernels.ops.base.geometry import (
    Geometry,
    channel_count,
    channels_first,
    check_groups,
    check_rank,
    check_real,
    check_same,
    check_shape,
    once_per_size,
    pad_input,
    spatial_size,
)

# Arguments of every registered op on a layer's weight: [V, N, A, *t] and [V, N, B, *u], where a
# tensor that does not depend on the column has V = 1.
ARGUMENTS = (
    "Tensor small, Tensor large, int[] kernel_size, int[] stride, int[] padding, "
    "int[] dilation, int groups"
)


def covered(
    large: Tensor,
    positions: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """``large`` [..., *u], zero-padded and cropped to what the kernel reads at ``positions``."""
    dims = len(kernel_size)
    sides: list[int] = []
    for d in reversed(range(dims)):
        needed = max(positions[d] - 1, 0) * stride[d] + dilation[d] * (kernel_size[d] - 1) + 1
        sides += [padding[d], needed - padding[d] - large.shape[large.dim() - dims + d]]
    return F.pad(large, sides)


def windows(
    large: Tensor,
    positions: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """View [..., B, *t, *k] of the windows a kernel sees of ``large`` [..., B, *u].

    window[..., t, k] = large[..., t * stride - padding + k * dilation], zero outside.
    """
    view = covered(large, positions, kernel_size, stride, padding, dilation)
    lead = large.dim() - len(kernel_size)
    for d, size in enumerate(kernel_size):
        view = view.unfold(lead + d, dilation[d] * (size - 1) + 1, stride[d])[..., :: dilation[d]]
        view = view.narrow(lead + d, 0, positions[d])
    return view


def library_input(
    large: Tensor,
    positions: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Tensor, list[int]]:
    """(input, padding) with which torch's convolution makes exactly ``positions``.

    ``large`` itself if symmetric padding suffices, else a padded copy.
    """
    taps = (tuple(kernel_size), tuple(stride), tuple(padding), tuple(dilation))
    if _made_by_library(large.shape[2:], *taps) == tuple(positions):
        return large, list(padding)
    return covered(large, positions, *taps), [0] * len(positions)


@once_per_size
def _made_by_library(
    size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Number of positions of torch's convolution, with the same padding on both sides."""
    return tuple(
        (length + 2 * pad - spread * (kernel - 1) - 1) // step + 1
        for length, pad, spread, kernel, step in zip(
            size, padding, dilation, kernel_size, stride, strict=True
        )
    )


def jacobian(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """G[v, n, a, b, k] = sum_t small[v, n, a, t] * window[v, n, b, t, k], materialised.

    Shape [V, N, A, B / groups, *kernel_size]. Tap by tap, so that ``large`` is never unfolded, and
    with a tensor that does not depend on the column used once for all of them.
    """
    view = windows(large, small.shape[3:], kernel_size, stride, padding, dilation)
    columns = column_count(small, large)
    a = small.unflatten(2, (groups, small.shape[2] // groups)).flatten(4)
    view = view.unflatten(2, (groups, large.shape[2] // groups))
    taps = []
    for tap in product(*(range(size) for size in kernel_size)):
        b = view[(..., *tap)].flatten(4)
        if large.shape[0] == 1:
            taps.append(torch.einsum("vngat,ngbt->vngab", a, b[0]))
        elif small.shape[0] == 1:
            taps.append(torch.einsum("ngat,vngbt->vngab", a[0], b))
        else:
            taps.append(torch.einsum("vngat,vngbt->vngab", a, b))
    g = torch.stack(taps, -1) if len(taps) > 1 else taps[0]
    return g.reshape(columns, *small.shape[1:3], large.shape[2] // groups, *kernel_size)


def jacobian_parts(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """G of some samples and some channels A at a time: both slices, and their part of G."""
    rest = (kernel_size, stride, padding, dilation)
    out, features = small.shape[2] // groups, large.shape[2] // groups
    channel = column_count(small, large) * features * prod(kernel_size)
    if 0 in small.shape or 0 in large.shape:
        everything = slice(0, small.shape[1]), slice(0, small.shape[2])
        yield *everything, jacobian(small, large, *rest, groups)
        return
    (first, *others) = row_chunks(small.shape[2], channel)
    for samples in row_chunks(small.shape[1], small.shape[2] * channel):
        a, b = small[:, samples], large[:, samples]
        if not others:
            yield samples, first, jacobian(a, b, *rest, groups)
            continue
        for group in range(groups):
            own = b[:, :, group * features : (group + 1) * features]
            for some in row_chunks(out, channel):
                channels = slice(group * out + some.start, group * out + some.stop)
                yield samples, channels, jacobian(a[:, :, channels], own, *rest, 1)


def squared_jacobian(
    small: Tensor, large: Tensor, kernel_size: Sequence[int], *rest: Any
) -> Tensor:
    """sum_{n,v} G², of the weight's shape."""
    found: dict[int, Tensor] = {}
    for _, channels, g in jacobian_parts(small, large, kernel_size, *rest):
        value = g.square().sum((0, 1))
        found[channels.start] = found.get(channels.start, 0) + value
    return torch.cat(list(found.values()))


def column_count(small: Tensor, large: Tensor) -> int:
    """V: of the two tensors the one that does not depend on the column has a single entry."""
    return large.shape[0] if small.shape[0] == 1 else small.shape[0]


def weight_shape(
    small: Tensor, large: Tensor, kernel_size: Sequence[int], groups: int
) -> tuple[int, ...]:
    """Shape [A, B / groups, *kernel_size] of the layer's weight."""
    return (small.shape[2], large.shape[2] // groups, *kernel_size)


def canonical(
    s: Tensor, x: Tensor, geometry: Geometry, name: str = "s"
) -> tuple[Tensor, Tensor, list[int], list[int], list[int], list[int], int]:
    """Arguments of the registered ops for ``s`` [V, N, O, ...] and ``x`` [N, I, ...], after checks.

    ``name`` is the user's name of ``s``, for messages.
    """
    check_real(name, s)
    check_same("x", x, **{name: s})
    _check_layer(name, s.shape, x.shape, geometry)
    x, geometry = pad_input(x, geometry)
    output = channels_first(s, geometry, 2)
    entry = channels_first(x, geometry, 1).unsqueeze(0)
    pair = (entry, output) if geometry.transposed else (output, entry)
    return (*pair, geometry.taps, *geometry.arguments)


@once_per_size
def _check_layer(name: str, s: torch.Size, x: torch.Size, geometry: Geometry) -> None:
    """Raise unless columns of shape ``s`` belong to the layer's output for an input ``x``."""
    check_rank(name, s, geometry, 2)
    check_rank("x", x, geometry, 1)
    if s[1] != x[0]:
        raise ValueError(f"{name} holds {s[1]} samples, but x holds {x[0]}")
    geometry.check_pair(spatial_size(x, geometry, 1), spatial_size(s, geometry, 2))
    check_groups(channel_count(s, geometry, 2), name, geometry.groups)
    check_groups(channel_count(x, geometry, 1), "x", geometry.groups)


def position_sums(s: Tensor, geometry: Geometry, variance: Tensor | None = None) -> Tensor:
    """sum_t s[v, n, o, t], the bias's Jacobian columns [V, N, O], after checks."""
    check_real("s", s)
    check_rank("s", s.shape, geometry, 2)
    sums = channels_first(s, geometry, 2).flatten(3).sum(3)
    if variance is not None:
        check_same("s", s, variance=variance)
        check_shape("variance", variance, sums.shape[2:])
    return sums


def weight_like(value: Tensor, geometry: Geometry) -> Tensor:
    """Drop the one-tap dimension that stands for a Linear layer's missing kernel."""
    return value.squeeze(-1) if geometry.is_linear else value


def out_like(out: Tensor | None, geometry: Geometry) -> Tensor | None:
    """The view of a user's buffer that the registered op writes."""
    return out.unsqueeze(-1) if out is not None and geometry.is_linear else out
