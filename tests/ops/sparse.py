"""Convolutions of random geometry with columns that share zeros."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from lapkernels.ops import Geometry

DENSITIES = [0.0, 0.05, 0.2, 0.6, 1.0]


@dataclass(frozen=True)
class Case:
    """A convolution of ``geometry`` from I to O channels on images of ``size``."""

    inputs: int
    outputs: int
    size: tuple[int, ...]
    geometry: Geometry
    columns: int
    samples: int
    density: float

    @property
    def seed(self) -> int:
        return hash((self.inputs, self.outputs, self.size, self.columns, self.samples)) % 2**31

    def draw(
        self, dtype: torch.dtype = torch.float64, integers: bool = False, shared: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """s [V, N, O, *out], x and weight; with ``shared`` the zeros of s are alike for all v."""
        generator = torch.Generator().manual_seed(self.seed)

        def numbers(*shape: int) -> Tensor:
            if integers:
                return torch.randint(-2, 3, shape, generator=generator).to(dtype)
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        positions = (self.samples, self.outputs, *self.geometry.output_size(self.size))
        s = numbers(self.columns, *positions)
        zeros = torch.rand(positions if shared else s.shape, generator=generator)
        s = s * (zeros < self.density)
        if self.outputs > 2:
            s[:, :, 1] = 0
        x = numbers(self.samples, self.inputs, *self.size)
        return s, x, numbers(self.outputs, self.inputs, *self.geometry.kernel_size)


def conv(
    inputs: int,
    outputs: int,
    size: int,
    kernel: int,
    columns: int,
    samples: int,
    density: float,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
) -> Case:
    """A square convolution."""
    geometry = Geometry.conv(kernel, stride, padding, dilation)
    return Case(inputs, outputs, (size, size), geometry, columns, samples, density)


def _random(seed: int) -> Case:
    draw = random.Random(seed)
    dims = draw.choice([1, 2, 2, 2, 3])

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randint(low, high) for _ in range(dims))

    kernel, stride, dilation = each(1, 4), each(1, 3), each(1, 2)
    padding = tuple(draw.randint(0, 3) for _ in range(dims))
    longest = {1: 300, 2: 20, 3: 5}[dims]
    size = tuple(
        max(1, d * (k - 1) + 1 - 2 * p) + draw.randint(0, longest)
        for d, k, p in zip(dilation, kernel, padding, strict=True)
    )
    channels = draw.choice([5, 17, 40])
    return Case(
        draw.randint(1, channels), draw.randint(1, channels), size,
        Geometry.conv(kernel, stride, padding, dilation),
        draw.randint(1, 10), draw.randint(1, 4), DENSITIES[seed % len(DENSITIES)],
    )  # fmt: skip


RANDOM = [_random(seed) for seed in range(40)]
FEW = [
    conv(3, 5, 9, 3, 2, 2, 0.3),
    conv(16, 20, 8, 3, 5, 3, 0.2, padding=1),
    conv(7, 33, 11, 2, 9, 2, 0.1, stride=2, padding=1, dilation=2),
    conv(2, 1, 18, 5, 1, 1, 0.5),
]
# One of each number of columns of a tile, and of vectors.
TILES = [conv(inputs, 4, 5, 1, columns, 1, 0.5) for inputs in (1, 8, 24, 61, 99)
         for columns in (1, 2, 3, 4, 7)]  # fmt: skip
