"""Parameter lists for the ops that run over all parameters in one pass."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

# Odd sizes, scalars, nothing, and enough for several vectors and blocks.
SHAPES: list[tuple[int, ...]] = [
    (1,), (3, 5), (), (0,), (17,), (8, 4, 3, 3), (0, 4), (1023,), (2, 0, 3), (33, 65), (40_001,),
]  # fmt: skip


def many(dtype: torch.dtype, seed: int, positive: bool = False) -> list[Tensor]:
    """Normal numbers, or numbers in [0.5, 2), of all shapes, some of them not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for index, shape in enumerate(SHAPES):
        value = torch.randn(shape, dtype=dtype, generator=generator)
        if positive:
            value = 0.5 + 1.5 * torch.rand(shape, dtype=dtype, generator=generator)
        if index % 3 == 1:
            value = torch.stack([value, value], -1)[..., 0]
        if index % 3 == 2 and value.dim() == 2:
            value = value.T.contiguous().T
        found.append(value)
    assert any(not value.is_contiguous() for value in found)
    return found


def count() -> int:
    """Number of parameters in such a list."""
    return sum(prod(shape) for shape in SHAPES)
