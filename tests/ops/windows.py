"""Cases of the ops on receptive-field windows, and their answers by plain loops in float64."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A layer between windows [V, A, *small, L] and [V, B, *large, L]."""

    a: int
    b: int
    small: Sizes
    large: Sizes
    kernel: Sizes
    stride: Sizes
    dilation: Sizes
    offset: Sizes
    groups: int = 1
    columns: int = 2
    lanes: int = 5

    @property
    def places(self) -> tuple[list[int], list[int], list[int], int]:
        """(stride, dilation, offset, groups), as the ops take them."""
        return list(self.stride), list(self.dilation), list(self.offset), self.groups

    @property
    def weight(self) -> Sizes:
        return (self.a, self.b // self.groups, *self.kernel)

    def sides(self, transposed: bool) -> tuple[Sizes, Sizes]:
        """Shapes [C, *positions] of what is pulled back, and of what it becomes."""
        pair = ((self.a, *self.small), (self.b, *self.large))
        return (pair[1], pair[0]) if transposed else pair

    def meetings(self) -> Iterator[tuple[Sizes, Sizes, Sizes]]:
        """(t, u, k) for which tap k joins entry t of the small window to u of the large."""
        ranges = [range(size) for size in (*self.small, *self.kernel)]
        dims = len(self.kernel)
        for index in product(*ranges):
            t, k = index[:dims], index[dims:]
            u = tuple(
                t[d] * self.stride[d] + k[d] * self.dilation[d] - self.offset[d]
                for d in range(dims)
            )
            if all(0 <= u[d] < self.large[d] for d in range(dims)):
                yield t, u, k

    def pairs(self) -> Iterator[tuple[slice, slice]]:
        """Channels of either side that belong to one group."""
        a, b = self.a // self.groups, self.b // self.groups
        for g in range(self.groups):
            yield slice(g * a, (g + 1) * a), slice(g * b, (g + 1) * b)


def plain(
    a: int, b: int, side: int, columns: int = 2, lanes: int = 5, dims: int = 2, kernel: int = 3
) -> Case:
    """A convolution of stride one on small windows of ``side``, large ones as wide as it reads."""

    def each(value: int) -> Sizes:
        return (value,) * dims

    return Case(
        a, b, each(side), each(side + kernel - 1), each(kernel), each(1), each(1), each(0),
        columns=columns, lanes=lanes,
    )  # fmt: skip


def random_case(seed: int) -> Case:
    """Any geometry: offsets before, inside and beyond the window."""
    rng = random.Random(seed)
    dims = rng.randint(1, 3)
    longest = {1: 12, 2: 6, 3: 3}[dims]

    def each(low: int, high: int) -> Sizes:
        return tuple(rng.randint(low, high) for _ in range(dims))

    groups = rng.choice([1, 1, 2, 3])
    most = rng.choice([3, 9])
    small, kernel, stride, dilation = each(1, longest), each(1, 3), each(1, 3), each(1, 3)
    wild = rng.random() < 0.2
    offset = each(-9, 9) if wild else each(-1, 2)
    large = tuple(
        max(1, (small[d] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + rng.randint(-1, 3))
        for d in range(dims)
    )
    a, b = groups * rng.randint(1, most), groups * rng.randint(1, most)
    lanes = rng.choice([1, 3, 4, 8, 17, 40, 67])
    return Case(
        a, b, small, large, kernel, stride, dilation, offset, groups, rng.randint(1, 3), lanes
    )


CASES = [random_case(seed) for seed in range(48)]
# Every number of channels up to past the register blocks, and lanes of every remainder.
CHANNELS = [plain(a, b, 2, 1, 9) for a in (1, 2, 3, 4, 5, 7, 16) for b in (1, 2, 3, 4, 5, 6, 7, 16)]
CHANNELS += [plain(c, c, 2, 1, 9) for c in (8, 9, 10, 11, 12, 13, 15, 17, 18)]
LANES = [plain(3, 2, 2, lanes=lanes) for lanes in (*range(1, 36), 63, 64, 65, 127, 129, 300)]
WINDOWS = [plain(3, 3, side, 3, 33) for side in range(1, 10)]
TINY = Case(4, 2, (3,), (6,), (2,), (2,), (2,), (1,), 2, 2, 3)
FEW = [*CASES[:8], plain(3, 3, 5, 3, 37), plain(8, 6, 3, 1, 16), plain(2, 3, 7, 2, 9, 1)]


def numbers(shape: Sequence[int], dtype: torch.dtype, integers: bool, seed: int) -> Tensor:
    """Normal numbers, or integers from -2 to 2."""
    generator = torch.Generator().manual_seed(seed)
    if integers:
        return torch.randint(-2, 3, tuple(shape), generator=generator).to(dtype)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


def pair(
    case: Case, on_large: bool, dtype: torch.dtype = torch.float64, integers: bool = False
) -> tuple[Tensor, Tensor]:
    """Small and large windows, the columns on one of them."""
    columns = (1, case.columns) if on_large else (case.columns, 1)
    small = numbers((columns[0], case.a, *case.small, case.lanes), dtype, integers, 1)
    large = numbers((columns[1], case.b, *case.large, case.lanes), dtype, integers, 2)
    return small, large


def pulled(
    case: Case, transposed: bool, dtype: torch.dtype = torch.float64, integers: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """(s, weight, factor)."""
    source, target = case.sides(transposed)
    s = numbers((case.columns, *source, case.lanes), dtype, integers, 3)
    weight = numbers(case.weight, dtype, integers, 4)
    factor = numbers((*target, case.lanes), dtype, integers, 5)
    return s, weight, factor


def brute_squared_sum(case: Case, small: Tensor, large: Tensor) -> Tensor:
    small, large = small.double(), large.double()
    columns = max(small.shape[0], large.shape[0])
    g = torch.zeros(columns, *case.weight, case.lanes, dtype=torch.float64)
    for t, u, k in case.meetings():
        for a, b in case.pairs():
            left, right = small[(slice(None), a, *t)], large[(slice(None), b, *u)]
            g[(slice(None), a, slice(None), *k)] += left[:, :, None] * right[:, None]
    return g.square().sum((0, -1))


def brute_pull(
    case: Case, transposed: bool, s: Tensor, weight: Tensor, factor: Tensor | None
) -> Tensor:
    s, weight = s.double(), weight.double()
    _, target = case.sides(transposed)
    out = torch.zeros(s.shape[0], *target, s.shape[-1], dtype=torch.float64)
    for t, u, k in case.meetings():
        for a, b in case.pairs():
            w = weight[(a, slice(None), *k)]
            if transposed:
                out[(slice(None), a, *t)] += torch.einsum("ab,vbl->val", w, s[(slice(None), b, *u)])
            else:
                out[(slice(None), b, *u)] += torch.einsum("ab,val->vbl", w, s[(slice(None), a, *t)])
    return out if factor is None else out * factor.double()
