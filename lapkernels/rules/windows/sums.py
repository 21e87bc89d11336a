"""A weight's share of columns as windows: sums of squares, and variances of lanes.

None for a use that cannot take windows: its columns are then expanded into images.
"""

from __future__ import annotations

from math import prod
from typing import TypeGuard

from torch import Tensor

from lapkernels import ops
from lapkernels.ops import Geometry
from lapkernels.rules.base.uses import ScaleUse, Use, WeightUse
from lapkernels.rules.windows.lanes import cut
from lapkernels.rules.windows.window import Window, through


def window_squares(use: Use, window: Window) -> Tensor | None:
    """sum G² over all columns and lanes, of the weight's shape."""
    if _is_layer(use, window):
        geometry = use.geometry
        place, offset = through(geometry, window.place)
        below = window.lanes.gather(use.x(), place).unsqueeze(0)
        small, large = (below, window.s) if geometry.transposed else (window.s, below)
        taps = (geometry.kernel_size, geometry.stride, geometry.dilation, offset, geometry.groups)
        return use.stored(ops.window_squared_sum(small, large, *taps))
    sums = _channel_sums(use, window)
    return None if sums is None else sums.square().sum((0, 2)).reshape(use.shape)


def window_variances(use: Use, window: Window, variance: Tensor) -> Tensor | None:
    """sum_p variance[p] G[p]² of each column and lane, [V, L]."""
    if _is_layer(use, window):
        return _layer_variances(use, window, use.canonical(variance))
    sums = _channel_sums(use, window)
    if sums is None:
        return None
    return (sums.square() * variance.reshape(-1, 1)).sum(1)


def _is_layer(use: Use, window: Window) -> TypeGuard[WeightUse]:
    """Whether the use is that of a convolution over the dimensions of the windows."""
    dims = len(window.place.width)
    return isinstance(use, WeightUse) and len(use.geometry.kernel_size) == dims


def _channel_sums(use: Use, window: Window) -> Tensor | None:
    """G [V, C, L] of a weight with an entry for each channel."""
    along = getattr(use, "along", None) or use.shape
    by_channel = len(along) == 1 + len(window.place.width)
    by_channel = by_channel and along[0] == prod(along) == window.s.shape[1]
    if not isinstance(use, ScaleUse) or not by_channel:
        return None
    entry = window.s if use.factor is None else window.s * window.gathered(use.factor())
    return entry.flatten(2, -2).sum(2)


def _layer_variances(use: WeightUse, window: Window, variance: Tensor) -> Tensor:
    """Every lane is a sample of its own, of the size of its windows."""
    given = use.geometry
    place, offset = through(given, window.place)
    x = window.lanes.gather(use.x(), place).movedim(-1, 0)  # [L, I, *width]
    s = window.s.movedim(-1, 1)  # [V, L, O, *width]
    taps = Geometry.conv(given.kernel_size, given.stride, 0, given.dilation, given.groups)
    if not given.transposed:
        return ops.jacobian_squared_dot(s, x, variance, taps).T
    # With the roles exchanged: x is the kernel that s is correlated with.
    met: list[tuple[int, int]] = []
    for d, first in enumerate(offset):
        reach = given.dilation[d] * (given.kernel_size[d] - 1)
        met.append((-first, (place.width[d] - 1) * given.stride[d] + reach + 1 - first))
    columns, lanes = s.shape[:2]
    large = cut(s.flatten(0, 1), met)
    small = x.expand(columns, *x.shape).flatten(0, 1).unsqueeze(0)
    return ops.jacobian_squared_dot(small, large, variance, taps).reshape(columns, lanes)
