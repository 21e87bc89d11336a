"""Indexing of tensors in all kernels: entry (index, position) of a factor.

A tensor [V, N, C, *grid] of three spatial dimensions is read at index (channel, tap) and position t
on the grid

    place[d] = t[d] * step[d] + origin[d] + tap[d] * spread[d],

zero outside of its limits. A convolution's input has step = stride, origin = -padding and
spread = dilation; a tensor without taps has one tap, and no bounds to check. Offsets are a sum of
one part for the position and one for the index, so a tile costs one addition an entry.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def along_positions(flat, sizes, origin, strides, STEP: tl.constexpr):
    """Offset and coordinates of flat positions on a grid of these sizes."""
    rest = flat // sizes[2]
    place0 = rest // sizes[1] * STEP[0] + origin[0]
    place1 = rest % sizes[1] * STEP[1] + origin[1]
    place2 = flat % sizes[2] * STEP[2] + origin[2]
    offset = place0 * strides[3] + place1 * strides[4] + place2 * strides[5]
    return offset, place0, place1, place2


@triton.jit
def along_indices(flat, first_channel, counts, strides, SPREAD: tl.constexpr):
    """Offset and coordinates of flat indices (channel, tap); `counts` are the taps a dimension."""
    taps = counts[0] * counts[1] * counts[2]
    tap = flat % taps
    rest = tap // counts[2]
    place0 = rest // counts[1] * SPREAD[0]
    place1 = rest % counts[1] * SPREAD[1]
    place2 = tap % counts[2] * SPREAD[2]
    offset = (
        (flat // taps + first_channel) * strides[2]
        + place0 * strides[3]
        + place1 * strides[4]
        + place2 * strides[5]
    )
    return offset, place0, place1, place2


@triton.jit
def load(data, limits, positions, indices, inside, CHECK: tl.constexpr):
    """The entries of a tile from both sides, which broadcast; zero where not `inside`."""
    if CHECK[0]:
        place = positions[1] + indices[1]
        inside = inside & (place >= 0) & (place < limits[0])
    if CHECK[1]:
        place = positions[2] + indices[2]
        inside = inside & (place >= 0) & (place < limits[1])
    if CHECK[2]:
        place = positions[3] + indices[3]
        inside = inside & (place >= 0) & (place < limits[2])
    return tl.load(data + (positions[0] + indices[0]), mask=inside, other=0.0)
