"""Independent entries: A = diag(c h + λ)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature import CovarianceBlock, Diagonal, IndependentEntries, diag
from lapkernels.laplace.posterior import Posterior, Precision, Shapes, normal, positive
from lapkernels.laplace.structures.structure import Packed, Structure, Subject


@dataclass(frozen=True, eq=False)
class DiagonalPosterior(Posterior):
    """``curvature`` is the diagonal of H by name."""

    curvature: Mapping[str, Tensor]

    def _precision(self, name: str, factor: float | Tensor = 1.0) -> Tensor:
        found = self.curvature[name].double() * self.scale + factor * self.precision[name]
        return positive(found, name)

    def log_determinant(self) -> Tensor:
        return torch.stack([self._precision(name).log().sum() for name in self.shapes]).sum()

    def product(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._precision(name).to(v.dtype) * v for name, v in vector.items()}

    def solve(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: v / self._precision(name).to(v.dtype) for name, v in vector.items()}

    def variance(self) -> dict[str, Tensor]:
        return {
            name: self._precision(name).reciprocal().to(self.curvature[name].dtype)
            for name in self.shapes
        }

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        variance = self.variance()
        return {
            name: normal((count, *v.shape), v, generator) * v.sqrt() for name, v in variance.items()
        }

    def families(self, factors: Tensor) -> list[tuple[CovarianceBlock, Tensor]]:
        found: list[tuple[CovarianceBlock, Tensor]] = []
        for name in self.shapes:
            each = torch.stack([self._precision(name, t).reciprocal() for t in factors])
            weights = each.to(self.curvature[name].dtype)
            found.append((IndependentEntries(name, weights[0]), weights.flatten(1)))
        return found


@dataclass(frozen=True)
class Diag(Structure):
    """The diagonal by any method of ``lk.diag``."""

    methods = ("exact", "mc", "empirical", "approx", "mixed", "hessian")
    options = ("samples", "sampler", "threshold")

    def measure(self, subject: Subject, batch: Any, basis: Any) -> Diagonal:
        return diag(subject.model, batch, **subject.arguments)

    def posterior(
        self, state: Diagonal, shapes: Shapes, precision: Precision, scale: Tensor
    ) -> Posterior:
        return DiagonalPosterior(shapes, precision, scale, state)

    def pack(self, state: Diagonal) -> Packed:
        return Packed(dict(state), {}, state.summary)

    def wrong_with(self, state: Diagonal, shapes: Shapes) -> str | None:
        found = {name: tuple(value.shape) for name, value in state.items()}
        return None if found == dict(shapes) else f"diagonals of shapes {found}, not {dict(shapes)}"

    def unpack(self, packed: Packed, basis: Any) -> Diagonal:
        return Diagonal(packed.tensors, packed.summary)
