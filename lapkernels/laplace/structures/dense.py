"""Dense blocks of A over chosen entries of some parameters: full, blocks and subnetworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from lapkernels.curvature import CovarianceBlock, Refused
from lapkernels.curvature.results.decompositions import cholesky, retried
from lapkernels.curvature.results.summary import by_name
from lapkernels.laplace.posterior import Posterior, normal, positive


@dataclass(frozen=True, eq=False)
class DenseBlocks:
    """B blocks of H, ``matrices`` [B, m, m], over entries of the parameters ``names``.

    ``positions`` [B, m] are indices into those parameters, flattened and concatenated.
    """

    names: tuple[str, ...]
    matrices: Tensor
    positions: Tensor

    @property
    def what(self) -> str:
        """The parameters' names, for messages."""
        return ", ".join(self.names[:3]) + (", .." if len(self.names) > 3 else "")

    @cached_property
    def spectrum(self) -> Tensor:
        """Eigenvalues [B, m], float64; negative ones that rounding explains are zero."""
        (values,) = self._decomposed(lambda matrix: (torch.linalg.eigvalsh(matrix),))
        return values.where(values < -self._slack(values), values.clamp_min(0))

    @cached_property
    def repaired(self) -> Tensor:
        """The blocks in float64 without the negative eigenvalues that rounding explains."""
        values, vectors = self._decomposed(torch.linalg.eigh)
        values = values.where(values < -self._slack(values), values.clamp_min(0))
        return (vectors * values.unsqueeze(1)) @ vectors.mT

    def _decomposed(self, decompose: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        matrices, what = self.matrices.double(), f"the curvature of {self.what}"
        return retried(decompose, matrices, what, "has no eigenvalues")

    def _slack(self, values: Tensor) -> Tensor:
        largest = values.abs().amax(-1, keepdim=True)
        return 10 * values.shape[-1] * torch.finfo(self.matrices.dtype).eps * largest


@dataclass(frozen=True, eq=False)
class DenseCovariance(CovarianceBlock):
    """Inverse of the blocks L Lᵀ, ``factor`` [B, m, m]; other entries are known."""

    names: tuple[str, ...]
    factor: Tensor
    positions: Tensor

    @property
    def weights(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.factor.new_ones(self.positions.numel())

    def coordinates(self, g: Tensor) -> Tensor:
        picked = g[..., self.positions.flatten()].reshape(-1, *self.positions.shape)
        solved = torch.linalg.solve_triangular(self.factor, picked.permute(1, 2, 0), upper=False)
        return solved.permute(2, 0, 1).reshape(*g.shape[:-1], self.positions.numel())


@dataclass(frozen=True, eq=False)
class SpectralCovariance(CovarianceBlock):
    """R diag(weights) Rᵀ of the blocks, ``rotation`` R [B, m, m]; other entries are known."""

    names: tuple[str, ...]
    rotation: Tensor
    positions: Tensor
    weights: Tensor

    def coordinates(self, g: Tensor) -> Tensor:
        picked = g[..., self.positions.flatten()].reshape(-1, *self.positions.shape)
        rotated = picked.transpose(0, 1) @ self.rotation
        return rotated.transpose(0, 1).reshape(*g.shape[:-1], self.positions.numel())


@dataclass(frozen=True, eq=False)
class DensePosterior(Posterior):
    """Independent dense blocks over disjoint entries."""

    parts: Sequence[DenseBlocks]

    def log_determinant(self) -> Tensor:
        total = self.scale.new_zeros(())
        for part in self.parts:
            single = self._single(part)
            if single is None:
                factor = self._decomposed(part)
                total = total + 2 * factor.diagonal(dim1=1, dim2=2).log().sum()
            else:
                values = positive(part.spectrum * self.scale + single, part.what)
                total = total + values.log().sum()
        return total

    def product(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for part in self.parts:
            picked = self._picked(part, vector)
            found.update(self._put(part, self._precision(part).to(picked) @ picked))
        return found

    def solve(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for part, factor in zip(self.parts, self._factors, strict=True):
            picked = self._picked(part, vector)
            found.update(self._put(part, torch.cholesky_solve(picked.double(), factor).to(picked)))
        return found

    def variance(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for part, factor in zip(self.parts, self._factors, strict=True):
            unit = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
            inverse = torch.linalg.solve_triangular(factor, unit.expand_as(factor), upper=False)
            value = inverse.square().sum(1).unsqueeze(2)
            found.update(self._put(part, value.to(part.matrices.dtype)))
        return found

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for part, factor in zip(self.parts, self._factors, strict=True):
            noise = normal((*factor.shape[:2], count), factor, generator)
            drawn = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
            drawn = drawn.permute(2, 0, 1).unsqueeze(3)
            found.update(self._put(part, drawn.to(part.matrices.dtype)))
        return found

    def blocks(self) -> list[CovarianceBlock]:
        return [
            DenseCovariance(part.names, factor.to(part.matrices.dtype), part.positions)
            for part, factor in zip(self.parts, self._factors, strict=True)
        ]

    def families(self, factors: Tensor) -> list[tuple[CovarianceBlock, Tensor]]:
        found: list[tuple[CovarianceBlock, Tensor]] = []
        for part in self.parts:
            deviation = self._prior(part).rsqrt()
            scaled = deviation.unsqueeze(2) * part.repaired * deviation.unsqueeze(1)
            what = f"the curvature of {part.what}"
            values, vectors = retried(torch.linalg.eigh, scaled, what, "has no eigenvalues")
            values = (values * self.scale).flatten() + factors.unsqueeze(1)
            weights = positive(values, part.what).reciprocal().to(part.matrices.dtype)
            rotation = (deviation.unsqueeze(2) * vectors).to(part.matrices.dtype)
            block = SpectralCovariance(part.names, rotation, part.positions, weights[0])
            found.append((block, weights))
        return found

    def uncertain(self, name: str) -> Tensor | None:
        for part in self.parts:
            if name in part.names:
                if part.positions.numel() == sum(prod(self.shapes[n]) for n in part.names):
                    return None
                ones = torch.ones_like(part.positions, dtype=torch.bool).unsqueeze(2)
                return self._put(part, ones)[name]
        raise KeyError(name)

    def eigenvalues(self) -> Tensor:
        """All eigenvalues of H, from the largest down."""
        return torch.cat([part.spectrum.flatten() for part in self.parts]).sort(descending=True)[0]

    def _single(self, part: DenseBlocks) -> Tensor | None:
        """The precision of all entries of a part, if it is one number."""
        first, *others = (self.precision[name] for name in part.names)
        return None if first.dim() or any(value is not first for value in others) else first

    def _precision(self, part: DenseBlocks, matrices: Tensor | None = None) -> Tensor:
        """A, [B, m, m], float64."""
        h = part.matrices.double() if matrices is None else matrices
        return h * self.scale + torch.diag_embed(self._prior(part))

    def _prior(self, part: DenseBlocks) -> Tensor:
        """The prior's precisions of a part's entries, [B, m], float64."""
        prior = torch.cat(
            [self.precision[name].expand(self.shapes[name]).flatten() for name in part.names]
        )
        return prior.to(part.matrices.device)[part.positions]

    @cached_property
    def _factors(self) -> list[Tensor]:
        """L of each part, cached for the next draw or prediction."""
        with torch.no_grad():
            return [self._decomposed(part) for part in self.parts]

    def _decomposed(self, part: DenseBlocks) -> Tensor:
        """L of A = L Lᵀ, float64."""
        what = f"the posterior precision of {part.what}"
        try:
            return cholesky(self._precision(part), what)
        except Refused:
            return cholesky(self._precision(part, part.repaired), what)

    def _picked(self, part: DenseBlocks, vector: Mapping[str, Tensor]) -> Tensor:
        """The entries [B, m, 1] of a part."""
        flat = torch.cat([vector[name].flatten() for name in part.names])
        return flat[part.positions].unsqueeze(2)

    def _put(self, part: DenseBlocks, value: Tensor) -> dict[str, Tensor]:
        """[L.., B, m, 1] scattered into the parameters [L.., *shape], zero elsewhere."""
        shapes = {name: self.shapes[name] for name in part.names}
        flat = value.new_zeros(*value.shape[:-3], sum(map(prod, shapes.values())))
        return by_name(flat.index_copy_(-1, part.positions.flatten(), value.flatten(-3)), shapes)
