r"""Kronecker-factored blocks: A = c B ⊗ A' + λ in the eigenbasis of both factors.

With :math:`Q = Q_B \otimes Q_A` the block is :math:`Q (c \, \mathrm{diag}(h) + \lambda) Q^T`, h
being products of eigenvalues, or the second moments of the columns in that basis (EKFAC).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature import (
    CorrectedKronecker,
    CovarianceBlock,
    Eigenbasis,
    Factors,
    Kronecker,
    KroneckerEigenbasis,
    kron,
    kron_corrected,
)
from lapkernels.curvature.results.eigenbasis import eigenbases
from lapkernels.laplace.posterior import (
    Posterior,
    Precision,
    Shapes,
    normal,
    one_number,
    positive,
)
from lapkernels.laplace.structures.structure import Packed, Structure, Subject


@dataclass(frozen=True, eq=False)
class KroneckerPosterior(Posterior):
    """``bases`` has the eigenvectors and the eigenvalues of H by name."""

    bases: Mapping[str, Eigenbasis]

    def _values(self, name: str, factor: float | Tensor = 1.0) -> Tensor:
        """Eigenvalues of A, of ``factor`` times the prior, [groups, O / g, I / g * K], float64."""
        prior = factor * one_number(self.precision, name, "kron")
        return positive(self.bases[name].values.double() * self.scale + prior, name)

    def log_determinant(self) -> Tensor:
        return torch.stack([self._values(name).log().sum() for name in self.shapes]).sum()

    def product(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._scaled(name, v, self._values(name)) for name, v in vector.items()}

    def solve(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._scaled(name, v, 1 / self._values(name)) for name, v in vector.items()}

    def _scaled(self, name: str, v: Tensor, values: Tensor) -> Tensor:
        """Q diag(values) Qᵀ v."""
        basis = self.bases[name]
        rotated = basis.rotate(basis.factors.to_matrix(v)) * values.to(v.dtype)
        return basis.factors.from_matrix(basis.rotate_back(rotated))

    def variance(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, basis in self.bases.items():
            inverse = self._values(name).reciprocal().to(basis.values.dtype)
            matrix = basis.output.square() @ inverse
            if basis.input is not None:
                matrix = matrix @ basis.input.square().mT
            found[name] = basis.factors.from_matrix(matrix)
        return found

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, basis in self.bases.items():
            deviation = self._values(name).rsqrt().to(basis.values.dtype)
            noise = normal((count, *deviation.shape), deviation, generator)
            found[name] = basis.factors.from_matrix(basis.rotate_back(noise * deviation))
        return found

    def families(self, factors: Tensor) -> list[tuple[CovarianceBlock, Tensor]]:
        found: list[tuple[CovarianceBlock, Tensor]] = []
        for name, basis in self.bases.items():
            each = torch.stack([self._values(name, t).reciprocal() for t in factors])
            weights = each.to(basis.values.dtype)
            block = KroneckerEigenbasis(name, replace(basis, values=weights[0]))
            found.append((block, weights.flatten(1)))
        return found


@dataclass(frozen=True)
class Kron(Structure):
    """Kronecker factors: KFAC ("mc"), KFLR ("exact") or of the true labels ("empirical")."""

    methods = ("mc", "exact", "empirical")
    options = ("samples", "sampler", "sharing")

    def measure(self, subject: Subject, batch: Any, basis: Any) -> Kronecker:
        return kron(subject.model, batch, **subject.arguments)

    def posterior(
        self, state: Kronecker, shapes: Shapes, precision: Precision, scale: Tensor
    ) -> Posterior:
        return KroneckerPosterior(shapes, precision, scale, eigenbases(state))

    def pack(self, state: Kronecker) -> Packed:
        tensors, data = _pack_factors(state)
        return Packed(tensors, data, state.summary)

    def wrong_with(self, state: Kronecker, shapes: Shapes) -> str | None:
        return _wrong_factors(state, shapes)

    def unpack(self, packed: Packed, basis: Any) -> Kronecker:
        return Kronecker(_unpack_factors(packed), packed.summary)


@dataclass(frozen=True)
class KronCorrected(Structure):
    """Kronecker eigenvectors with second moments as eigenvalues: EKFAC, two sweeps."""

    methods = Kron.methods
    options = Kron.options
    first = Kron()

    def between(self, subject: Subject, state: Kronecker) -> CorrectedKronecker:
        bases = eigenbases(state)
        start = {k: replace(b, values=torch.zeros_like(b.values)) for k, b in bases.items()}
        return CorrectedKronecker(start, state.summary)

    def measure(self, subject: Subject, batch: Any, basis: CorrectedKronecker) -> Any:
        return kron_corrected(subject.model, batch, basis=basis, **subject.arguments)

    def posterior(
        self, state: CorrectedKronecker, shapes: Shapes, precision: Precision, scale: Tensor
    ) -> Posterior:
        return KroneckerPosterior(shapes, precision, scale, state)

    def pack(self, state: CorrectedKronecker) -> Packed:
        tensors, data = _pack_factors({name: basis.factors for name, basis in state.items()})
        for name, basis in state.items():
            for part in ("output", "input", "values"):
                value = getattr(basis, part)
                if value is not None:
                    tensors[f"{name}/eigen_{part}"] = value
        return Packed(tensors, data, state.summary)

    def wrong_with(self, state: CorrectedKronecker, shapes: Shapes) -> str | None:
        wrong = _wrong_factors({name: basis.factors for name, basis in state.items()}, shapes)
        for name, basis in () if wrong else state.items():
            groups, out, features = basis.factors.matrix_shape
            found = [None if t is None else tuple(t.shape) for t in (basis.output, basis.input)]
            dense = basis.factors.input_sum is not None and basis.factors.input_sum.dim() == 3
            wanted = [(groups, out, out), (groups, features, features) if dense else None]
            if found != wanted or tuple(basis.values.shape) != (groups, out, features):
                return f"eigenvectors of {name} of shapes {found}, not {wanted}"
        return wrong

    def unpack(self, packed: Packed, basis: CorrectedKronecker | None) -> CorrectedKronecker:
        found: dict[str, Eigenbasis] = {}
        for name, factors in _unpack_factors(packed).items():
            # States add up only if they share the factors of one basis.
            own = factors if basis is None else basis[name].factors
            parts = [packed.tensors.get(f"{name}/eigen_{p}") for p in ("output", "input", "values")]
            found[name] = Eigenbasis(own, *parts)  # pyright: ignore[reportArgumentType]
        return CorrectedKronecker(found, packed.summary)

    def pack_basis(self, basis: CorrectedKronecker) -> Packed:
        return self.pack(basis)

    def unpack_basis(self, packed: Packed) -> CorrectedKronecker:
        return self.unpack(packed, None)


def _pack_factors(state: Mapping[str, Factors]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    data: dict[str, Any] = {}
    for name, factors in state.items():
        parts = [p for p in ("output", "input_sum", "entries") if getattr(factors, p) is not None]
        tensors.update({f"{name}/{part}": getattr(factors, part) for part in parts})
        rest = {"shape": factors.shape, "count": factors.count, "used": factors.used}
        data[name] = {**rest, "parts": parts}
    return tensors, data


def _wrong_factors(state: Mapping[str, Factors], shapes: Shapes) -> str | None:
    found = {name: tuple(factors.shape) for name, factors in state.items()}
    if found != dict(shapes):
        return f"factors of parameters {found}, not {dict(shapes)}"
    for name, factors in state.items():
        output, inputs = tuple(factors.output.shape), factors.input_sum
        if len(output) != 3 or output[1] != output[2]:
            return f"the factor B of {name} has shape {output}"
        if inputs is not None and tuple(inputs.shape) not in (
            (output[0], inputs.shape[-1]),
            (output[0], inputs.shape[-1], inputs.shape[-1]),
        ):
            return f"the factor A of {name} has shape {tuple(inputs.shape)}"
        size = prod(factors.shape)
        if prod(factors.matrix_shape) != size or factors.count < 1:
            return f"the factors of {name} are of a matrix {factors.matrix_shape}"
        if factors.entries is not None and not torch.equal(
            factors.entries.flatten().sort().values.cpu(), torch.arange(size, device="cpu")
        ):
            return f"the entries of {name} are not all of it once"
    return None


def _unpack_factors(packed: Packed) -> dict[str, Factors]:
    found: dict[str, Factors] = {}
    for name, data in packed.data.items():
        parts = {part: packed.tensors[f"{name}/{part}"] for part in data["parts"]}
        found[name] = Factors(tuple(data["shape"]), data["count"], **parts, used=data["used"])
    return found
