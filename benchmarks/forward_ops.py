"""Max pools, and products of shared columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.registry import Family, random, register
from lapkernels import ops

TOLERANCE = 1e-5


@dataclass(frozen=True)
class MapSize:
    """A batch of feature maps."""

    inputs: int
    resolution: int
    samples: int

    def __str__(self) -> str:
        return f"c{self.inputs}-r{self.resolution}-n{self.samples}"


@dataclass(frozen=True)
class ProductSize:
    """Columns, samples, and the features of a Linear layer's output and input."""

    columns: int
    samples: int
    outputs: int
    inputs: int
    triangular: bool = True

    def __str__(self) -> str:
        rows = "triangular" if self.triangular else "dense"
        return f"{rows}-v{self.columns}-n{self.samples}-{self.outputs}-{self.inputs}"


MAPS = [MapSize(3, r, 4) for r in (32, 64, 128, 256)] + [MapSize(64, 28, 16)]
PRODUCTS = [
    ProductSize(512, 16, 512, 256),
    ProductSize(171, 16, 512, 256),
    ProductSize(64, 32, 64, 64),
    ProductSize(10, 128, 256, 256, triangular=False),
]


def _make_maps(size: MapSize, device: torch.device) -> tuple[Any, ...]:
    shape = (size.samples, size.inputs, size.resolution, size.resolution)
    return tuple(random(0, shape, device=device))


def _make_product(size: ProductSize, device: torch.device) -> tuple[Any, ...]:
    shapes = ((size.columns, size.outputs), (size.samples, size.outputs))
    rows, factor, weight = random(2, *shapes, (size.outputs, size.inputs), device=device)
    return rows.triu() if size.triangular else rows, factor, weight


def _pooled(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2, return_indices=True)[0]


max_pool = register(
    Family(
        "max_pool",
        MAPS,
        MapSize(2, 8, 2),
        _make_maps,
        lambda x: F.max_pool2d(x.double(), 2),
        TOLERANCE,
    )
)
max_pool.method("torch, with places")(_pooled)


@max_pool.method("lapkernels", "ours")
def _(x: Tensor) -> Tensor:
    return ops.max_pool2d(x, [2, 2], [2, 2], [0, 0], [1, 1], False)[0]


def _product_oracle(rows: Tensor, factor: Tensor, weight: Tensor) -> Tensor:
    return (rows.double().unsqueeze(1) * factor.double()) @ weight.double()


scaled_product = register(
    Family(
        "scaled_product",
        PRODUCTS,
        ProductSize(5, 2, 6, 4),
        _make_product,
        _product_oracle,
        TOLERANCE,
    )
)
scaled_product.method("lapkernels", "ours")(ops.scaled_product)


@scaled_product.method("scaled columns")
def _(rows: Tensor, factor: Tensor, weight: Tensor) -> Tensor:
    return (rows.unsqueeze(1) * factor) @ weight


@scaled_product.method("scaled weights")
def _(rows: Tensor, factor: Tensor, weight: Tensor) -> Tensor:
    scaled = factor.mT.unsqueeze(2) * weight.unsqueeze(1)
    return (rows @ scaled.flatten(1)).unflatten(1, scaled.shape[1:])
