"""Columns that start at one output pixel each, carried as windows instead of images.

A column that starts at one pixel is zero outside its receptive field. All columns of a tile of
pixels are kept together, lanes last: s [V, C, *width, L] with a lane for each sample and pixel.
Where a window extends beyond its image its entries are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops import Geometry
from lapkernels.rules.windows.lanes import Lanes, Place


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
        index = index.expand(columns, channels, *index.shape)
        # Windows that go round may meet themselves.
        out.scatter_add_(2, index, flat) if self.place.period else out.scatter_(2, index, flat)
        out = out[:, :, :entries].unflatten(3, (self.lanes.count, -1))
        return out.permute(0, 4, 3, 1, 2).reshape(-1, self.lanes.count, channels, *size)

    def squares(self, size: Sequence[int]) -> Tensor:
        """The sum of their squares over all columns, as images [N, C, *size]."""
        pairs = zip(self.place.width, self.place.periods, strict=True)
        if any(width > period > 0 for width, period in pairs):
            return self.image(size).square().sum(0)
        index = self.lanes.positions(self.place, size, self.s.device).flatten(0, -2)  # [width, L]
        square = self.s.square().sum(0).flatten(1, -2)  # [C, width, L]
        index, square = (
            each.unflatten(-1, (self.lanes.count, -1)).movedim(-2, 0).flatten(-2)
            for each in (index, square)
        )
        out = square.new_zeros(*square.shape[:2], prod(size) + 1)
        out.scatter_add_(2, index.unsqueeze(1).expand_as(square), square)
        return out[..., :-1].unflatten(2, tuple(size))


class NotAligned(ValueError):
    """Pixels are needed in steps of a multiple of ``factor`` along dimension ``dim``."""

    def __init__(self, dim: int, factor: int) -> None:
        super().__init__(dim, factor)
        self.dim, self.factor = dim, factor


def through(geometry: Geometry, place: Place) -> tuple[Place, list[int]]:
    """Windows at a layer's input from those at its output, and the offset between their starts.

    Position t of the small grid is read at t * stride + k * dilation - offset of the large one,
    both relative to the start of their windows. Where a transposed convolution with gaps between
    its taps has no input, the window is one entry that no tap reads. A period is that of the large
    grid divided by the stride on the small one: see ``keeps_period``.
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
    period: tuple[int, ...] = ()
    if place.period:
        pairs = zip(place.period, geometry.stride, strict=True)
        period = tuple(p // s if geometry.transposed else p * s for p, s in pairs)
    return Place(*(tuple(entry) for entry in zip(*below, strict=True)), period=period), offset
