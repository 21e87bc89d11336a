r"""Low rank: H = F Fᵀ with F [P, m], m small.

With :math:`M = \sqrt c \, \Lambda^{-1/2} F` the precision is
:math:`\Lambda^{1/2} (I + M M^T) \Lambda^{1/2}`, and all that is needed follows from the singular
values of M, :math:`M M^T = U x U^T`:

.. math::
   \log|A| = \log|\Lambda| + \sum \log(1 + x), \qquad
   (I + M M^T)^{-1} = I - U \frac{x}{1 + x} U^T .
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature import CovarianceBlock, LowRank, low_rank
from lapkernels.curvature.results.decompositions import cholesky, retried
from lapkernels.curvature.results.summary import by_name
from lapkernels.laplace.posterior import Posterior, Precision, Shapes, normal
from lapkernels.laplace.structures.full import count_of, pack_slices, unpack_slices
from lapkernels.laplace.structures.structure import Packed, Structure, Subject


@dataclass(frozen=True, eq=False)
class FactorCovariance(CovarianceBlock):
    """Λ^-1/2 (I + U x Uᵀ)^-1 Λ^-1/2 over all parameters, U [P, m] orthonormal.

    The coordinates are along the ``directions`` U, and what is left of a row, of weight one.
    """

    names: tuple[str, ...]
    deviation: Tensor
    directions: Tensor
    weights: Tensor

    def coordinates(self, g: Tensor) -> Tensor:
        scaled = g * self.deviation
        along = scaled @ self.directions
        return torch.cat([along, scaled - along @ self.directions.T], -1)


@dataclass(frozen=True, eq=False)
class FactorPosterior(Posterior):
    """``factor`` is F [P, m] over the flattened parameters in their order."""

    factor: Tensor

    @cached_property
    def _prior(self) -> Tensor:
        values = [self.precision[name].expand(shape) for name, shape in self.shapes.items()]
        return torch.cat([value.flatten() for value in values]).to(self.factor.device)

    def _tall(self) -> Tensor:
        """M [P, m], float64."""
        return self.factor.double() * (self.scale / self._prior).sqrt().unsqueeze(1)

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """U [P, m] and x [m] with M Mᵀ = U x Uᵀ; kept for the next draw or prediction."""

        def decompose(tall: Tensor) -> tuple[Tensor, ...]:
            return torch.linalg.svd(tall, full_matrices=False)[:2]

        what = "the curvature's factor"
        directions, root = retried(decompose, self._tall().detach(), what, "has no singular values")
        return directions, root.square()

    def log_determinant(self) -> Tensor:
        tall = self._tall()
        gram = torch.eye(tall.shape[1], dtype=tall.dtype, device=tall.device) + tall.T @ tall
        factor = cholesky(gram, "the Gram matrix of the curvature's factor")
        return self.log_prior_determinant() + 2 * factor.diagonal().log().sum()

    def product(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flat = torch.cat([vector[name].flatten() for name in self.shapes]).double()
        factor = self.factor.double()
        return self._split(self.scale * (factor @ (factor.T @ flat)) + self._prior * flat)

    def solve(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flat = torch.cat([vector[name].flatten() for name in self.shapes]).double()
        directions, x = self._spectrum
        scaled = flat / self._prior.sqrt()
        inner = scaled - directions @ (x / (1 + x) * (directions.T @ scaled))
        return self._split(inner / self._prior.sqrt())

    def variance(self) -> dict[str, Tensor]:
        directions, x = self._spectrum
        share = directions.square() @ (x / (1 + x))
        return self._split((1 - share).clamp_min(0) / self._prior)

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        ((block, weights),) = self.families(self.scale.new_ones(1))
        noise = normal((count, len(block.deviation)), block.deviation, generator)
        along = noise @ block.directions
        root = weights[0, : along.shape[1]].sqrt()
        return self._split((noise + (along * (root - 1)) @ block.directions.T) * block.deviation)

    def families(self, factors: Tensor) -> list[tuple[FactorCovariance, Tensor]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        directions, x = self._spectrum
        values = torch.cat([x, x.new_zeros(len(directions))])
        weights = (values + factors.unsqueeze(1)).reciprocal()
        parts = (self._prior.rsqrt(), directions, weights)
        deviation, directions, weights = (part.to(self.factor.dtype) for part in parts)
        names = tuple(self.shapes)
        return [(FactorCovariance(names, deviation, directions, weights[0]), weights)]

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        return by_name(flat.to(self.factor.dtype), self.shapes)


@dataclass(frozen=True)
class LargestEigenvalues(Structure):
    """The ``rank`` largest eigenvalues of H and their eigenvectors."""

    methods = ("exact",)
    options = ("rank", "tolerance", "max_sweeps")
    whole = True

    def measure(self, subject: Subject, batch: Any, basis: Any) -> LowRank:
        options = {k: v for k, v in subject.arguments.items() if k != "method"}
        if "rank" not in options:
            raise ValueError("structure 'low_rank' needs rank=, the number of eigenvalues")
        return low_rank(subject.model, batch, **options)

    def posterior(
        self, state: LowRank, shapes: Shapes, precision: Precision, scale: Tensor
    ) -> Posterior:
        factor = state.vectors * state.values.sqrt()
        return FactorPosterior(shapes, precision, scale, factor)

    def pack(self, state: LowRank) -> Packed:
        names = ("vectors", "values", "residuals")
        tensors = {name: getattr(state, name) for name in names}
        return Packed(tensors, pack_slices(state.slices), state.summary)

    def wrong_with(self, state: LowRank, shapes: Shapes) -> str | None:
        size, rank = count_of(shapes), len(state.values)
        found = [tuple(t.shape) for t in (state.vectors, state.values, state.residuals)]
        wanted = [(size, rank), (rank,), (rank,)]
        if found != wanted or not bool((state.values >= 0).all()):
            return f"eigenvectors, eigenvalues and residuals of shapes {found}, not {wanted}"
        return None

    def unpack(self, packed: Packed, basis: Any) -> LowRank:
        return LowRank(**packed.tensors, slices=unpack_slices(packed.data), summary=packed.summary)
