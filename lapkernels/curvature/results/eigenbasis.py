r"""Kronecker-factored blocks in their eigenbasis, :math:`Q = Q_B \otimes Q_A`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lapkernels import ops
from lapkernels.curvature.backward.parameter_uses import features_last
from lapkernels.curvature.data.processes import processes
from lapkernels.curvature.results.decompositions import eigen
from lapkernels.curvature.results.kronecker import Factors
from lapkernels.ops.base.chunks import row_chunks
from lapkernels.rules import WeightUse


@dataclass(frozen=True)
class Eigenbasis:
    """A block Q diag(values) Qᵀ of one parameter, Q = output ⊗ input.

    ``output`` is [groups, O / g, O / g], ``input`` [groups, I / g * K, I / g * K], or None for the
    identity; ``values`` is [groups, O / g, I / g * K]. ``factors`` has the parameter's layout.
    """

    factors: Factors
    output: Tensor
    input: Tensor | None
    values: Tensor

    @classmethod
    def of(cls, factors: Factors, name: str, known: dict[int, tuple[Tensor, Tensor]]) -> Eigenbasis:
        """Of the block B ⊗ A of a parameter: its eigenvectors, and products of eigenvalues.

        ``known`` caches decompositions by the id of B, which a weight and a bias may share.
        """
        if id(factors.output) not in known:
            known[id(factors.output)] = eigen(factors.output, f"the Kronecker factor B of {name}")
        values, output = known[id(factors.output)]
        inputs = factors.input
        if inputs is None:
            return cls(factors, output, None, values.unsqueeze(2))
        if inputs.dim() == 2:
            return cls(factors, output, None, values.unsqueeze(2) * inputs.unsqueeze(1))
        others, basis = eigen(inputs, f"the Kronecker factor A of {name}")
        return cls(factors, output, basis, values.unsqueeze(2) * others.unsqueeze(1))

    def same_basis(self, other: Eigenbasis) -> bool:
        """Whether both have the same eigenvectors."""
        if self.factors is other.factors:
            return True
        if (self.input is None) != (other.input is None):
            return False
        same = self.input is None or other.input is None or torch.equal(self.input, other.input)
        return same and torch.equal(self.output, other.output)

    def rotate(self, matrix: Tensor) -> Tensor:
        """Q_Bᵀ G Q_A of G [L.., groups, O / g, I / g * K]."""
        matrix = self.output.mT @ matrix
        return matrix if self.input is None else matrix @ self.input

    def rotate_back(self, matrix: Tensor) -> Tensor:
        """Q_B M Q_Aᵀ of M [L.., groups, O / g, I / g * K]."""
        matrix = self.output @ matrix
        return matrix if self.input is None else matrix @ self.input.mT

    def rotated_rows(self, use: WeightUse, s: Tensor) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """A layer as Linear layers over its positions, rotated, some samples at a time.

        For each group the columns [V, n, T, O / g] and the inputs [n, T, I / g * K].
        """
        assert self.input is not None
        arranged, groups = use.arrange(s), self.factors.groups
        for rows in row_chunks(use.count, use.positions * groups * self.input.shape[1]):
            x = ops.unfolded(use.x()[rows], use.geometry) @ self.input.unsqueeze(0)
            part = features_last(arranged[:, rows], use.geometry).unflatten(3, (groups, -1))
            yield [(part[:, :, :, g] @ self.output[g], x[:, g]) for g in range(groups)]

    def dense(self) -> Tensor:
        """The block [P, P] in the order of the flattened parameter: for small ones."""
        size = prod(self.factors.shape)
        unit = torch.eye(size, dtype=self.values.dtype, device=self.values.device)
        matrix = self.factors.to_matrix(unit.reshape(size, *self.factors.shape))
        rotated = self.rotate(matrix).flatten(1)
        return (rotated * self.values.flatten()) @ rotated.T


def eigenbases(found: Mapping[str, Factors]) -> dict[str, Eigenbasis]:
    """The bases of all parameters, distributed over processes by cost."""
    together = processes()
    costs = [_cost(factors) for factors in found.values()]
    own = [rank == together.rank for rank in shared_out(costs, together.size)]

    def decomposed() -> dict[str, tuple[Tensor, Tensor | None, Tensor]]:
        known: dict[int, tuple[Tensor, Tensor]] = {}
        bases = [
            (name, Eigenbasis.of(factors, name, known))
            for mine, (name, factors) in zip(own, found.items(), strict=True)
            if mine
        ]
        return {name: (basis.output, basis.input, basis.values) for name, basis in bases}

    parts = together.everywhere("decompositions", decomposed) or {}
    return {name: Eigenbasis(factors, *parts[name]) for name, factors in found.items()}


def _cost(factors: Factors) -> int:
    """Decompositions of both factors, in cubes of their sizes."""
    groups, out, features = factors.matrix_shape
    dense = factors.input_sum is not None and factors.input_sum.dim() == 3
    return groups * (out**3 + (features**3 if dense else 0))


def shared_out(costs: Sequence[int], count: int) -> list[int]:
    """The process of ``count`` for each task: the largest first, each to the least loaded."""
    loads, owners = [0] * count, [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: -costs[task]):
        owners[task] = min(range(count), key=loads.__getitem__)
        loads[owners[task]] += costs[task]
    return owners
