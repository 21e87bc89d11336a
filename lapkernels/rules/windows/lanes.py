"""The lanes of windows: output pixels, and where their windows lie in a value.

Lane (n, q) belongs to sample n and to pixel q of a grid: all pixels of a tile, or selected ones.
Along each dimension its window of a value starts at ``step * q + first`` of the value's image, and
may extend beyond it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Place:
    """Where the windows of a value lie: step and first start along each dimension, and width.

    Where there is a ``period``, an entry stands for that at its position modulo the period, so that
    a window may go round. Along dimensions with period 0 there is nothing outside the image.
    """

    step: tuple[int, ...]
    first: tuple[int, ...]
    width: tuple[int, ...]
    period: tuple[int, ...] = ()

    @property
    def periods(self) -> tuple[int, ...]:
        """The period along each dimension, 0 for none."""
        return self.period or (0,) * len(self.width)

    def union(self, other: Place) -> Place:
        """The smallest windows that contain both."""
        first = tuple(map(min, self.first, other.first))
        ends = [
            max(a + u, b + v)
            for a, u, b, v in zip(self.first, self.width, other.first, other.width, strict=True)
        ]
        width = tuple(e - f for e, f in zip(ends, first, strict=True))
        return Place(self.step, first, width, self.period or other.period)

    def covers(self, image: Sequence[int]) -> bool:
        """Whether a window is no smaller than the image."""
        return prod(self.width) >= prod(image)


def cut(x: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    """Entries from a first to before an end along each of the last dimensions, zero outside."""
    sides: list[int] = []
    for d, (first, end) in enumerate(reversed(ranges), 1):
        # A range wholly outside is empty; torch cannot crop more than the size.
        before = max(-x.shape[-d], min(-first, end - first))
        sides += [before, end - first - x.shape[-d] - before]
    return F.pad(x, sides)


class Lanes(ABC):
    """L = ``count`` * ``pixels`` lanes, ``pixels`` of each sample."""

    count: int

    @property
    @abstractmethod
    def pixels(self) -> int:
        """The number of pixels of each sample."""

    @property
    @abstractmethod
    def extent(self) -> tuple[int, ...]:
        """A size of the grid that contains all pixels."""

    @property
    def size(self) -> int:
        """L."""
        return self.count * self.pixels

    @abstractmethod
    def gather(self, x: Tensor, place: Place) -> Tensor:
        """Windows [C, *width, L] of images ``x`` [N, C, *size], zero outside them."""

    @abstractmethod
    def starts(self, d: int, device: torch.device) -> Tensor:
        """Coordinate d of each lane's pixel in the grid, [N or 1, *pixels]."""

    def positions(self, place: Place, size: Sequence[int], device: torch.device) -> Tensor:
        """Flat position of each window entry in its image, [*width, L]; outside is prod(size)."""
        flat = outside = torch.zeros((), dtype=torch.long, device=device)
        for (d, length), period in zip(enumerate(size), place.periods, strict=True):
            start = self.starts(d, device) * place.step[d] + place.first[d]
            w = torch.arange(place.width[d], device=device)
            after = (1,) * (len(size) - 1 - d + start.dim())
            at = w.reshape(-1, *after) + start
            at = at % period if period else at
            flat = flat * length + at
            outside = outside | (at < 0) | (at >= length)
        flat = torch.where(outside.bool(), prod(size), flat).flatten(len(size) + 1)
        return flat.expand(*place.width, self.count, -1).flatten(len(size))

    def inside(self, place: Place, size: Sequence[int], like: Tensor) -> Tensor:
        """One where a window entry lies in its image, zero elsewhere, [*width, L]."""
        return (self.positions(place, size, like.device) < prod(size)).to(like.dtype)


@dataclass(frozen=True)
class Grid(Lanes):
    """A tile: all pixels q of a rectangle of this ``shape``, the same for all samples."""

    count: int
    shape: tuple[int, ...]

    @property
    def pixels(self) -> int:
        return prod(self.shape)

    @property
    def extent(self) -> tuple[int, ...]:
        return self.shape

    def starts(self, d: int, device: torch.device) -> Tensor:
        after = (1,) * (len(self.shape) - 1 - d)
        index = torch.arange(self.shape[d], device=device).reshape(-1, *after)
        return index.expand(1, *self.shape)

    def gather(self, x: Tensor, place: Place) -> Tensor:
        places = zip(self.shape, place.step, place.first, place.width, strict=True)
        ranges = [(first, first + step * (n - 1) + width) for n, step, first, width in places]
        for d, period in enumerate(place.periods):
            if period:
                x = x.index_select(2 + d, torch.arange(*ranges[d], device=x.device) % period)
                ranges[d] = (0, x.shape[2 + d])
        view = cut(x, ranges)
        for d, width in enumerate(place.width):
            view = view.unfold(2 + d, width, max(1, place.step[d]))
        dims = len(self.shape)
        order = [1, *range(2 + dims, 2 + 2 * dims), 0, *range(2, 2 + dims)]
        return view.permute(order).reshape(x.shape[1], *place.width, -1)


@dataclass(frozen=True)
class Points(Lanes):
    """Some pixels of each sample, at ``at`` [N, pixels, dims] of the grid."""

    at: Tensor

    @property
    def count(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.at.shape[0]

    @property
    def pixels(self) -> int:
        return self.at.shape[1]

    @property
    def extent(self) -> tuple[int, ...]:
        return tuple((self.at.flatten(0, 1).amax(0) + 1).tolist())

    def starts(self, d: int, device: torch.device) -> Tensor:
        return self.at[:, :, d]

    def gather(self, x: Tensor, place: Place) -> Tensor:
        index = self.positions(place, x.shape[2:], x.device).flatten(0, -2)  # [width, L]
        index = index.unflatten(1, (self.count, -1)).movedim(1, 0).flatten(1)  # [N, width * pixels]
        flat = F.pad(x.flatten(2), (0, 1))  # one more entry, zero, is what lies outside
        found = flat.gather(2, index.unsqueeze(1).expand(-1, x.shape[1], -1))
        found = found.unflatten(2, (*place.width, self.pixels))
        return found.movedim(0, -2).flatten(-2)
