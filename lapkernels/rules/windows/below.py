"""Windows at the operands of an op from those at its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

import torch
from torch import Tensor

from lapkernels import ops
from lapkernels.ops import Geometry
from lapkernels.rules.affine import Convolution
from lapkernels.rules.base.rule import Rule
from lapkernels.rules.elementwise import Elementwise, FromOutput, Sum
from lapkernels.rules.normalization import RunningStatistics
from lapkernels.rules.padding import ConstantPad, CopiedPad
from lapkernels.rules.pooling import AveragePool, MaxPool
from lapkernels.rules.rearrangement import PixelShuffle
from lapkernels.rules.resampling import Interpolated, Nearest
from lapkernels.rules.shape import Concatenate, Copy, Part, Reshape
from lapkernels.rules.windows.borders import copies_of, interpolation_of
from lapkernels.rules.windows.lanes import Place, cut
from lapkernels.rules.windows.window import Window, through

# Rules of elementwise ops, and of ops with one number a channel.
POINTWISE = (Elementwise, FromOutput, RunningStatistics)


def layer_of(rule: Rule) -> Geometry | None:
    """The taps of an op that reads its operand by windows of its own, if they are regular."""
    if isinstance(rule, Convolution):
        return rule.geometry
    if isinstance(rule, Nearest):
        sizes = zip(rule.size, rule.shape[2:], strict=True)
        if any(large % small for large, small in sizes):
            return None
        factor = tuple(a // b for a, b in zip(rule.size, rule.shape[2:], strict=True))
        return Geometry.conv(factor, factor, transposed=True)
    if isinstance(rule, PixelShuffle) and len(rule.shape) == 4:
        return Geometry.conv(rule.factor, rule.factor, transposed=rule.up)
    if isinstance(rule, MaxPool) and "kernel_size" in rule.arguments:
        given = rule.arguments
        stride = given["stride"] or given["kernel_size"]
        taps = (given["kernel_size"], stride, given["padding"], given["dilation"])
        return _pool(rule.spatial, *taps)
    if isinstance(rule, AveragePool):
        size, stride, padding, ceil, with_padding = rule.arguments
        if ceil or rule.divisor or (any(padding) and not with_padding):
            return None
        return _pool(rule.spatial, size, stride or size, padding, [1])
    return None


def _pool(
    dims: int, size: Sequence[int], stride: Sequence[int], pad: Sequence[int], spread: Sequence[int]
) -> Geometry:
    size, stride, pad, spread = (
        tuple(given) * (dims if len(given) == 1 else 1) for given in (size, stride, pad, spread)
    )
    return Geometry.conv(size, stride, pad, spread)


def place_below(
    rule: Rule, place: Place, extent: Sequence[int], like: Tensor, period: tuple[int, ...] = ()
) -> Place | None:
    """Windows at the operands of an op from those at its result; None where there is no rule.

    They start at pixels up to ``extent``, and the columns have the type of ``like``. ``period`` is
    that of the first operand, if it repeats.
    """
    dims = len(place.width)
    if place.period and not _keeps_period(rule, place, period):
        return None
    if isinstance(rule, (*POINTWISE, Sum)) or _is_same(rule):
        return place
    if isinstance(rule, Concatenate):
        return place if rule.dim == 1 and not rule.stack else None
    if isinstance(rule, (ConstantPad, Part)):
        moves = _moves(rule, dims)
        return None if moves is None else _moved(place, moves)
    if isinstance(rule, CopiedPad):
        if rule.spatial != dims:
            return None
        if rule.mode == "circular":
            return replace(_moved(place, _before(rule)), period=rule.period)
        return copies_of(rule).place_below(place, extent)
    if isinstance(rule, Interpolated):
        found = interpolation_of(rule, like) if rule.spatial == dims else None
        if found is None:
            return None
        return found.copies.place_below(through(found.geometry, place)[0], extent)
    geometry = layer_of(rule)
    return None if geometry is None else through(geometry, place)[0]


def _keeps_period(rule: Rule, place: Place, period: tuple[int, ...]) -> bool:
    """Whether an op of a repeated image is that of the image, repeated: windows may go round."""
    if isinstance(rule, (*POINTWISE, Sum, Concatenate)) or _is_same(rule):
        return True
    if isinstance(rule, CopiedPad):
        return rule.mode == "circular" and place.period == rule.period
    geometry = layer_of(rule)
    if geometry is None or any(side for pair in geometry.padding for side in pair):
        return False
    if isinstance(rule, Convolution):
        strides = zip(place.period, geometry.stride, strict=True)
        return not geometry.transposed and period == tuple(p * s for p, s in strides)
    # Pixels in blocks of their own, of which the image is made.
    blocks = geometry.kernel_size == geometry.stride and set(geometry.dilation) == {1}
    shape = getattr(rule, "shape", ())[2:]
    pairs = list(zip(shape, geometry.stride, place.period, strict=True))
    if geometry.transposed:
        return blocks and all(n * s == p for n, s, p in pairs)
    return blocks and all(n == p * s for n, s, p in pairs)


def _before(rule: CopiedPad) -> list[int]:
    """The padding in front of an image along each dimension, negative."""
    return [-size for size in rule.sides[::2]][::-1]


def _moves(rule: ConstantPad | Part, dims: int) -> list[int] | None:
    """How much further an entry of the operand lies than in the result, along each dimension."""
    if len(rule.shape) != dims + 2:
        return None
    if isinstance(rule, ConstantPad):
        before = [0] * dims
        for d, size in enumerate(rule.sides[::2]):
            if d < dims:
                before[dims - 1 - d] = -size
            elif size or rule.sides[2 * d + 1]:
                return None
        return before
    first, end, step = rule.range
    if rule.select or step != 1 or (rule.dim == 0 and end - first != rule.shape[0]):
        return None
    return [first if d == rule.dim - 2 else 0 for d in range(dims)]


def _is_same(rule: Rule) -> bool:
    """Whether an op, such as dropout in eval mode, changes neither entries nor their order."""
    return isinstance(rule, (Reshape, Copy)) and rule.same


def _moved(place: Place, moves: Sequence[int]) -> Place:
    return replace(place, first=tuple(f + m for f, m in zip(place.first, moves, strict=True)))


def windows_below(
    rule: Rule, window: Window, shapes: Sequence[Sequence[int]], factors: Sequence[Tensor | None]
) -> list[Window | None]:
    """Windows at the operands of an op from those at its result.

    ``shapes`` are those of the operands; ``factors`` the derivatives of a pointwise op, or that of
    the pointwise op below a layer, which is then passed as well.
    """
    if _is_same(rule):
        return [window]
    if isinstance(rule, Sum):
        return [window if c == 1 else replace(window, s=window.s * c) for c in rule.coefficients]
    if isinstance(rule, Concatenate):
        parts = window.s.split(rule.sizes, 1)
        return [replace(window, s=part) for part in parts]
    if isinstance(rule, POINTWISE):
        return [
            None if one is None else replace(window, s=window.s * window.gathered(one), clean=True)
            for one in factors
        ]
    if isinstance(rule, (ConstantPad, Part)):
        moves = _moves(rule, len(window.place.width))
        assert moves is not None
        s = window.s
        if isinstance(rule, Part) and rule.dim == 1:
            s = s.new_zeros(s.shape[0], rule.shape[1], *s.shape[2:])
            s[:, rule.range[0] : rule.range[1]] = window.s
        # Entries of a padding lie outside the image.
        below = replace(window, s=s, place=_moved(window.place, moves), clean=False)
    elif isinstance(rule, CopiedPad) and rule.mode == "circular":
        below = replace(
            window, place=replace(_moved(window.place, _before(rule)), period=rule.period)
        )
    elif isinstance(rule, CopiedPad):
        below = copies_of(rule).pull(window)
    elif isinstance(rule, Interpolated):
        found = interpolation_of(rule, window.s)
        assert found is not None
        padded = _by_channel(window, found.kernel, found.geometry)
        inside = [len(source) for source in found.copies.sources]
        below = found.copies.pull(padded.cleaned(inside))
    elif isinstance(rule, MaxPool):
        below = _max_pool_below(rule, window)
    elif isinstance(rule, PixelShuffle):
        below = _shuffle_below(rule, window)
    else:
        below = _layer_below(rule, window, factors[0] if factors else None)
    return [below, *[None] * (len(shapes) - 1)]


def _layer_below(rule: Rule, window: Window, factor: Tensor | None) -> Window:
    """Through a convolution, or through a pool or resize, which is one for each channel."""
    geometry = layer_of(rule)
    assert geometry is not None
    if not isinstance(rule, Convolution):
        entry = 1.0 / prod(geometry.kernel_size) if isinstance(rule, AveragePool) else 1.0
        return _by_channel(window, window.s.new_full(geometry.kernel_size, entry), geometry)
    assert rule.weight is not None
    place, offset = through(geometry, window.place)
    factor = None if factor is None else window.lanes.gather(factor, place)
    taps = (place.width, geometry.stride, geometry.dilation, offset, geometry.groups)
    value = ops.window_pull(window.s, rule.weight.tensor, *taps, geometry.transposed, factor)
    return replace(window, s=value, place=place, clean=factor is not None)


def _by_channel(window: Window, kernel: Tensor, geometry: Geometry) -> Window:
    """Through one ``kernel`` [*taps] for each channel."""
    place, offset = through(geometry, window.place)
    s, weight = window.s.flatten(0, 1).unsqueeze(1), kernel[None, None]
    taps = (place.width, geometry.stride, geometry.dilation, offset)
    value = ops.window_pull(s, weight, *taps, 1, geometry.transposed)
    value = value.reshape(*window.s.shape[:2], *value.shape[2:])
    return replace(window, s=value, place=place, clean=False)


def _shuffle_below(rule: PixelShuffle, window: Window) -> Window:
    """Positions into channels [C, *factors], or back."""
    geometry = layer_of(rule)
    assert geometry is not None
    place, offset = through(geometry, window.place)
    factor, s = rule.factor, window.s
    if rule.up:
        large = [(-o, factor * w - o) for o, w in zip(offset, place.width, strict=True)]
        s = cut(s.movedim(-1, 0), large).movedim(0, -1)
        s = s.unflatten(3, (-1, factor)).unflatten(2, (-1, factor))
        s = s.permute(0, 1, 3, 5, 2, 4, 6).flatten(1, 3)
    else:
        s = s.unflatten(1, (-1, factor, factor)).permute(0, 1, 4, 2, 5, 3, 6)
        s = s.flatten(4, 5).flatten(2, 3)
    return replace(window, s=s, place=place, clean=False)


def _max_pool_below(rule: MaxPool, window: Window) -> Window:
    """Each entry goes to the tap of the maximum."""
    geometry = layer_of(rule)
    assert geometry is not None
    place, _ = through(geometry, window.place)
    taps = window.gathered(_largest_tap(rule, geometry))
    out = window.s.new_zeros(*window.s.shape[:2], *place.width, window.s.shape[-1])
    for number, tap in enumerate(product(*(range(k) for k in geometry.kernel_size))):
        part = out
        for d, k in enumerate(tap):
            first = k * geometry.dilation[d]
            last = first + geometry.stride[d] * (window.place.width[d] - 1) + 1
            part = part.narrow(2 + d, first, last - first)
            part = part[(slice(None),) * (2 + d) + (slice(None, None, geometry.stride[d]),)]
        part += window.s * (taps == number)
    return replace(window, s=out, place=place)


def _largest_tap(rule: MaxPool, geometry: Geometry) -> Tensor:
    """Number of the tap that each entry of the result was read through."""
    rest = rule.index.tensor
    number = torch.zeros_like(rest)
    scale = 1
    for d in reversed(range(rule.spatial)):
        size = rule.shape[-rule.spatial + d]
        shape = [-1 if e == d else 1 for e in range(rule.spatial)]
        start = torch.arange(rest.shape[-rule.spatial + d], device=rest.device).reshape(shape)
        start = start * geometry.stride[d] - geometry.padding[d][0]
        number = number + (rest % size - start) // geometry.dilation[d] * scale
        rest = rest // size
        scale *= geometry.kernel_size[d]
    return number


def derivatives(
    rule: Rule, shape: Sequence[int], like: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Elementwise derivatives [N, C, *size] of a pointwise op with respect to its operands."""
    ones = like.new_ones(()).expand(1, *shape)
    return [None if one is None else one[0] for one in rule.columns([ones], wanted)]
