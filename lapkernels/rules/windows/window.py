"""Columns that start at one output pixel each, carried as windows instead of images.

A column that starts at one pixel is zero outside its receptive field. All columns of a tile of
pixels are kept together, lanes last: s [V, C, *width, L] with a lane for each sample and pixel.
Where a window extends beyond its image its entries are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels import ops
from lapkernels.ops import Geometry
from lapkernels.rules.affine import Convolution
from lapkernels.rules.base.rule import Rule
from lapkernels.rules.elementwise import Elementwise, FromOutput, Sum
from lapkernels.rules.normalization import RunningStatistics
from lapkernels.rules.pooling import AveragePool, MaxPool
from lapkernels.rules.resampling import Nearest
from lapkernels.rules.shape import Concatenate
from lapkernels.rules.windows.lanes import Lanes, Place

# Rules of elementwise ops, and of ops with one number a channel.
POINTWISE = (Elementwise, FromOutput, RunningStatistics)


@dataclass(frozen=True)
class Window:
    """Columns ``s`` [V, C, *width, L] as windows.

    ``clean`` says that entries outside the image are zero already.
    """

    s: Tensor
    place: Place
    lanes: Lanes
    clean: bool = True

    def cleaned(self, image: Sequence[int]) -> Window:
        """The same with zeros outside an image of this size."""
        if self.clean:
            return self
        inside = self.lanes.inside(self.place, image, self.s)
        return replace(self, s=self.s * inside, clean=True)

    def gathered(self, x: Tensor) -> Tensor:
        """The same windows of images ``x`` [N, C, *size], [C, *width, L]."""
        return self.lanes.gather(x, self.place)

    def moved(self, place: Place) -> Window:
        """The same columns in larger windows."""
        if place == self.place:
            return self
        sides: list[int] = [0, 0]
        for d in reversed(range(len(place.width))):
            before = self.place.first[d] - place.first[d]
            sides += [before, place.width[d] - self.place.width[d] - before]
        return replace(self, s=F.pad(self.s, sides), place=place)

    def image(self, size: Sequence[int]) -> Tensor:
        """The columns as images, [V * pixels, N, C, *size]."""
        columns, channels = self.s.shape[:2]
        index = self.lanes.positions(self.place, size, self.s.device).flatten(0, -2)  # [width, L]
        entries = prod(size)
        out = self.s.new_zeros(columns, channels, entries + 1, self.s.shape[-1])
        flat = self.s.flatten(2, -2)
        out.scatter_(2, index.expand(columns, channels, *index.shape), flat)
        out = out[:, :, :entries].unflatten(3, (self.lanes.count, -1))
        return out.permute(0, 4, 3, 1, 2).reshape(-1, self.lanes.count, channels, *size)

    def squares(self, size: Sequence[int]) -> Tensor:
        """The sum of their squares over all columns, as images [N, C, *size]."""
        index = self.lanes.positions(self.place, size, self.s.device).flatten(0, -2)  # [width, L]
        square = self.s.square().sum(0).flatten(1, -2)  # [C, width, L]
        index, square = (
            each.unflatten(-1, (self.lanes.count, -1)).movedim(-2, 0).flatten(-2)
            for each in (index, square)
        )
        out = square.new_zeros(*square.shape[:2], prod(size) + 1)
        out.scatter_add_(2, index.unsqueeze(1).expand_as(square), square)
        return out[..., :-1].unflatten(2, tuple(size))


def through(geometry: Geometry, place: Place) -> tuple[Place, list[int]]:
    """Windows at a layer's input from those at its output, and the offset between their starts.

    Position t of the small grid is read at t * stride + k * dilation - offset of the large one,
    both relative to the start of their windows. Where a transposed convolution with gaps between
    its taps has no input, the window is one entry that no tap reads.
    """
    below, offset = [], []
    for d, (step, first, width) in enumerate(
        zip(place.step, place.first, place.width, strict=True)
    ):
        stride, pad = geometry.stride[d], geometry.padding[d][0]
        reach = geometry.dilation[d] * (geometry.kernel_size[d] - 1)
        if not geometry.transposed:
            below.append((stride * step, stride * first - pad, (width - 1) * stride + reach + 1))
            offset.append(0)
            continue
        if step % stride:
            raise NotAligned(d, stride)
        start = -((reach - first - pad) // stride)
        end = (first + width - 1 + pad) // stride
        below.append((step // stride, start, max(1, end - start + 1)))
        offset.append(first + pad - stride * start)
    return Place(*(tuple(entry) for entry in zip(*below, strict=True))), offset


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


def place_below(rule: Rule, place: Place) -> Place | None:
    """Windows at the operands of an op from those at its result; None where there is no rule."""
    if isinstance(rule, (*POINTWISE, Sum)):
        return place
    if isinstance(rule, Concatenate):
        return place if rule.dim == 1 and not rule.stack else None
    geometry = layer_of(rule)
    return None if geometry is None else through(geometry, place)[0]


class NotAligned(ValueError):
    """Pixels are needed in steps of a multiple of ``factor`` along dimension ``dim``."""

    def __init__(self, dim: int, factor: int) -> None:
        super().__init__(dim, factor)
        self.dim, self.factor = dim, factor


def windows_below(
    rule: Rule, window: Window, shapes: Sequence[Sequence[int]], factors: Sequence[Tensor | None]
) -> list[Window | None]:
    """Windows at the operands of an op from those at its result.

    ``shapes`` are those of the operands; ``factors`` the derivatives of a pointwise op, or that of
    the pointwise op below a layer, which is then passed as well.
    """
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
    if isinstance(rule, MaxPool):
        below = _max_pool_below(rule, window)
    else:
        below = _layer_below(rule, window, factors[0] if factors else None)
    return [below, *[None] * (len(shapes) - 1)]


def _layer_below(rule: Rule, window: Window, factor: Tensor | None) -> Window:
    """Through a convolution, or through a pool or resize, which is one for each channel."""
    geometry = layer_of(rule)
    assert geometry is not None
    place, offset = through(geometry, window.place)
    s = window.s
    if isinstance(rule, Convolution):
        assert rule.weight is not None
        weight = rule.weight.tensor
        factor = None if factor is None else window.lanes.gather(factor, place)
    else:
        s = s.flatten(0, 1).unsqueeze(1)
        entry = 1.0 / prod(geometry.kernel_size) if isinstance(rule, AveragePool) else 1.0
        weight = s.new_full((1, 1, *geometry.kernel_size), entry)
    taps = (place.width, geometry.stride, geometry.dilation, offset, geometry.groups)
    value = ops.window_pull(s, weight, *taps, geometry.transposed, factor)
    value = value.reshape(window.s.shape[0], -1, *value.shape[2:])
    return replace(window, s=value, place=place, clean=factor is not None)


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
