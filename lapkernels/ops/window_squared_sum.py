r"""Sum of squared Jacobian columns over windows: the exact diagonal of columns from one pixel each.

.. math:: D[a, b, k] = \sum_{v, l} \Bigl( \sum_t \mathrm{small}[v, a, t, l] \,
          \mathrm{large}[v, b, t \cdot \mathrm{stride} + k \cdot \mathrm{dilation}
          - \mathrm{offset}, l] \Bigr)^2

with one lane l for each sample and output pixel, and zero outside the large window.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.ops.base.geometry import check_groups, check_same
from lapkernels.ops.base.registration import register
from lapkernels.ops.base.windows import (
    TAPS,
    check_taps,
    check_window,
    met,
    taken,
    tap_starts,
)


def window_squared_sum(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    offset: Sequence[int],
    groups: int = 1,
    *,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """D [A, B / groups, *kernel_size] from ``small`` [V, A, *t, L] and ``large`` [V, B, *u, L].

    The one of the two that does not depend on the column has V = 1. In a convolution the small
    windows are those of its output, in a transposed convolution those of its input.
    With ``out`` the result is ``out <- decay * out + scale * D``, in place.
    """
    check_taps(kernel_size, stride, dilation, offset, groups)
    for name, window in (("small", small), ("large", large)):
        check_window(name, window, len(kernel_size))
        check_groups(window.shape[1], name, groups)
    check_same("small", small, large=large)
    if small.shape[0] != large.shape[0] and 1 not in (small.shape[0], large.shape[0]):
        raise ValueError(
            f"large holds {large.shape[0]} columns, but small holds {small.shape[0]}: "
            "they must be equal, or one of them 1"
        )
    if small.shape[-1] != large.shape[-1]:
        raise ValueError(f"large has {large.shape[-1]} lanes, but small has {small.shape[-1]}")
    taps = (list(stride), list(dilation), list(offset), groups)
    return _op(small, large, list(kernel_size), *taps, out=out, decay=decay, scale=scale)


def _reference(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    offset: Sequence[int],
    groups: int,
) -> Tensor:
    shape = _shape(small, large, kernel_size, stride, dilation, offset, groups)
    columns = large.shape[0] if small.shape[0] == 1 else small.shape[0]
    nothing = small.new_zeros(shape[:2])
    here = [0] * len(kernel_size)
    taps = []
    for _, start in tap_starts(kernel_size, dilation, offset):
        i = met(start, stride, small.shape[2:-1], large.shape[2:-1])
        if i is None or 0 in (columns, small.shape[-1]):
            taps.append(nothing)
            continue
        a = taken(small, here, [1] * len(here), i).flatten(2, -2)
        b = taken(large, start, stride, i).flatten(2, -2)
        a, b = (w.unflatten(1, (groups, -1)).expand(columns, -1, -1, -1, -1) for w in (a, b))
        g = torch.einsum("vgatl,vgbtl->vgabl", a, b)
        taps.append(g.square().sum((0, 4)).reshape(shape[:2]))
    return torch.stack(taps, 2).reshape(shape)


def _shape(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    offset: Sequence[int],
    groups: int,
) -> tuple[int, ...]:
    return (small.shape[1], large.shape[1] // groups, *kernel_size)


_op = register(
    "window_squared_sum",
    f"Tensor small, Tensor large, int[] kernel_size, {TAPS}",
    reference=_reference,
    shape=_shape,
)
