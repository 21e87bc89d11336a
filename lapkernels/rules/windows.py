"""Columns that start at one output pixel each, carried as windows instead of images.

A column that starts at one pixel is zero outside its receptive field. All columns of a tile of
pixels are kept together, lanes last: s [V, C, *width, L] with a lane for each sample n and pixel q
of the tile. Along each dimension the window of pixel q starts at ``step * q + first`` of its image,
and may stick out of it, where its entries are zero.
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
from lapkernels.rules.elementwise import Elementwise, FromOutput, Sum
from lapkernels.rules.normalization import RunningStatistics
from lapkernels.rules.pooling import AveragePool, MaxPool
from lapkernels.rules.resampling import Nearest
from lapkernels.rules.rule import Rule
from lapkernels.rules.shape import Concatenate
from lapkernels.rules.uses import ScaleUse, Use, WeightUse

# Rules of ops that act entry by entry, or on each entry of a channel alike.
POINTWISE = (Elementwise, FromOutput, RunningStatistics)


@dataclass(frozen=True)
class Place:
    """Where the windows of a value lie: step and first start along each dimension, and width."""

    step: tuple[int, ...]
    first: tuple[int, ...]
    width: tuple[int, ...]

    def union(self, other: Place) -> Place:
        """The smallest windows that hold both."""
        first = tuple(map(min, self.first, other.first))
        ends = [
            max(a + u, b + v)
            for a, u, b, v in zip(self.first, self.width, other.first, other.width, strict=True)
        ]
        return Place(self.step, first, tuple(e - f for e, f in zip(ends, first, strict=True)))

    def covers(self, image: Sequence[int]) -> bool:
        """Whether a window is no smaller than the image."""
        return prod(self.width) >= prod(image)


@dataclass(frozen=True)
class Window:
    """Columns ``s`` [V, C, *width, L] at a place, lanes being [N, *pixels].

    ``clean`` says that entries outside the image are zero already.
    """

    s: Tensor
    place: Place
    count: int
    pixels: tuple[int, ...]
    clean: bool = True

    def cleaned(self, image: Sequence[int]) -> Window:
        """The same with zeros outside an image of this size."""
        if self.clean:
            return self
        inside = self.s.new_ones(1, 1, *image)
        mask = gather(inside, self.place, self.pixels)  # [1, *width, pixels]
        lanes = mask.repeat(*(1,) * (mask.dim() - 1), self.count)
        return replace(self, s=self.s * lanes, clean=True)

    def moved(self, place: Place) -> Window:
        """The same in windows that hold these."""
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
        index = _positions(self.place, self.pixels, size, self.s.device)
        index = index.flatten(0, -2).repeat(1, self.count)  # [width, L]
        entries = prod(size)
        out = self.s.new_zeros(columns, channels, entries + 1, self.s.shape[-1])
        flat = self.s.flatten(2, -2)
        out.scatter_(2, index.expand(columns, channels, *index.shape), flat)
        out = out[:, :, :entries].unflatten(3, (self.count, prod(self.pixels)))
        return out.permute(0, 4, 3, 1, 2).reshape(-1, self.count, channels, *size)


def _positions(
    place: Place, pixels: Sequence[int], size: Sequence[int], device: torch.device
) -> Tensor:
    """Flat position of each window entry in the image, [*width, pixels]; outside is prod(size)."""
    dims = len(size)
    flat = torch.zeros((1,) * 2 * dims, dtype=torch.long, device=device)
    outside = torch.zeros_like(flat, dtype=torch.bool)
    for d in range(dims):
        q = torch.arange(pixels[d], device=device)
        w = torch.arange(place.width[d], device=device)
        at = w.unsqueeze(1) + q * place.step[d] + place.first[d]  # [width, pixels]
        shape = [1] * 2 * dims
        shape[d], shape[dims + d] = at.shape
        at = at.reshape(shape)
        flat = flat * size[d] + at
        outside = outside | (at < 0) | (at >= size[d])
    flat = torch.where(outside, prod(size), flat)
    return flat.flatten(dims)


def gather(x: Tensor, place: Place, pixels: Sequence[int]) -> Tensor:
    """Windows [C, *width, N * pixels] of images ``x`` [N, C, *size], zero outside them."""
    sides: list[int] = []
    for d in reversed(range(len(pixels))):
        end = place.step[d] * (pixels[d] - 1) + place.first[d] + place.width[d]
        sides += [-place.first[d], end - x.shape[2 + d]]
    view = F.pad(x, sides)
    for d, width in enumerate(place.width):
        view = view.unfold(2 + d, width, max(1, place.step[d]))
    dims = len(pixels)
    order = [1, *range(2 + dims, 2 + 2 * dims), 0, *range(2, 2 + dims)]
    return view.permute(order).reshape(x.shape[1], *place.width, -1)


def through(geometry: Geometry, place: Place) -> tuple[Place, list[int]]:
    """Windows at a layer's input from those at its output, and the offset between their starts.

    Position t of the small grid meets t * stride + k * dilation - offset of the large one, both
    counted from the start of their windows.
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
        below.append((step // stride, start, end - start + 1))
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
    """Pixels must be taken in steps of a multiple of ``factor`` along dimension ``dim``."""

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
        parts = window.s.split([shape[1] for shape in shapes], 1)
        return [replace(window, s=part) for part in parts]
    if isinstance(rule, POINTWISE):
        return [
            None
            if one is None
            else replace(window, s=window.s * gather(one, window.place, window.pixels), clean=True)
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
        factor = None if factor is None else gather(factor, place, window.pixels)
    else:
        s = s.flatten(0, 1).unsqueeze(1)
        entry = 1.0 / prod(geometry.kernel_size) if isinstance(rule, AveragePool) else 1.0
        weight = s.new_full((1, 1, *geometry.kernel_size), entry)
    taps = (place.width, geometry.stride, geometry.dilation, offset, geometry.groups)
    value = ops.window_pull(s, weight, *taps, geometry.transposed, factor)
    value = value.reshape(window.s.shape[0], -1, *value.shape[2:])
    return replace(window, s=value, place=place, clean=factor is not None)


def _max_pool_below(rule: MaxPool, window: Window) -> Window:
    """Each entry goes to the tap that was largest."""
    geometry = layer_of(rule)
    assert geometry is not None
    place, _ = through(geometry, window.place)
    taps = gather(_largest_tap(rule, geometry), window.place, window.pixels)
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
    """Entry by entry derivatives [N, C, *size] of a pointwise op with respect to its operands."""
    ones = like.new_ones(()).expand(1, *shape)
    return [None if one is None else one[0] for one in rule.columns([ones], wanted)]


def window_squares(use: Use, window: Window) -> Tensor | None:
    """sum G² over all columns of the windows at the result of a use; None where there is no way."""
    dims = len(window.pixels)
    if isinstance(use, WeightUse) and len(use.geometry.kernel_size) == dims:
        return _convolution_squares(use, window)
    along = getattr(use, "along", None) or use.shape
    by_channel = len(along) == 1 + dims and along[0] == prod(along) == window.s.shape[1]
    if not isinstance(use, ScaleUse) or not by_channel:
        return None
    entry = window.s
    if use.factor is not None:
        entry = entry * gather(use.factor(), window.place, window.pixels)
    sums = entry.flatten(2, -2).sum(2)  # [V, C, L]
    return sums.square().sum((0, 2)).reshape(use.shape)


def _convolution_squares(use: WeightUse, window: Window) -> Tensor:
    geometry = use.geometry
    place, offset = through(geometry, window.place)
    below = gather(use.x(), place, window.pixels).unsqueeze(0)
    small, large = (below, window.s) if geometry.transposed else (window.s, below)
    taps = (geometry.kernel_size, geometry.stride, geometry.dilation, offset, geometry.groups)
    return use.stored(ops.window_squared_sum(small, large, *taps))
