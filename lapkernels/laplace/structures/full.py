"""The whole matrix: A = c H + Λ."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature import Full, full
from lapkernels.laplace.posterior import Posterior, Precision, Shapes
from lapkernels.laplace.structures.dense import DenseBlocks, DensePosterior
from lapkernels.laplace.structures.structure import Packed, Structure, Subject


@dataclass(frozen=True)
class FullMatrix(Structure):
    """One dense matrix over all parameters, by Gauss-Newton or the Hessian."""

    methods = ("exact", "mc", "empirical", "hessian")
    options = ("samples", "sampler", "limit")

    def measure(self, subject: Subject, batch: Any, basis: Any) -> Full:
        return full(subject.model, batch, **subject.arguments)

    def posterior(
        self, state: Full, shapes: Shapes, precision: Precision, scale: Tensor
    ) -> Posterior:
        everything = torch.arange(len(state.matrix), device=state.matrix.device)
        blocks = DenseBlocks(tuple(shapes), state.matrix.unsqueeze(0), everything.unsqueeze(0))
        return DensePosterior(shapes, precision, scale, [blocks])

    def pack(self, state: Full) -> Packed:
        return Packed({"matrix": state.matrix}, pack_slices(state.slices), state.summary)

    def wrong_with(self, state: Full, shapes: Shapes) -> str | None:
        return wrong_matrix(state.matrix, count_of(shapes), state.slices, shapes)

    def unpack(self, packed: Packed, basis: Any) -> Full:
        return Full(packed.tensors["matrix"], unpack_slices(packed.data), packed.summary)


def count_of(shapes: Shapes) -> int:
    """Number of entries of all parameters."""
    return sum(prod(shape) for shape in shapes.values())


def wrong_matrix(matrix: Tensor, size: int, slices: dict[str, slice], shapes: Shapes) -> str | None:
    """Whether a matrix is no [size, size], or slices are not those of ``size`` entries."""
    if tuple(matrix.shape) != (size, size):
        return f"a matrix of shape {tuple(matrix.shape)}, not {(size, size)}"
    ends = [0, *(where.stop for where in slices.values())]
    starts = [where.start for where in slices.values()]
    if list(slices) != list(shapes) or starts != ends[:-1] or ends[-1] != size:
        return f"the matrix has places {slices}, but parameters {list(shapes)}"
    return None


def pack_slices(slices: dict[str, slice]) -> dict[str, Any]:
    """Slices as JSON."""
    return {name: [where.start, where.stop] for name, where in slices.items()}


def unpack_slices(data: dict[str, Any]) -> dict[str, slice]:
    """Slices from JSON."""
    return {name: slice(*where) for name, where in data.items()}
