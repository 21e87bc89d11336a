r"""Kronecker-factored curvature.

The block of a weight W [O, I * K] is :math:`B \otimes A`, row-major as W itself:

.. math:: (B \otimes A)[(o, i), (o', i')] = B[o, o'] \, A[i, i'].

B is a sum over samples, A an average: ``output`` is B, ``input_sum`` the sum N A.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from lapkernels.curvature.backward.parameter_uses import same_entries
from lapkernels.curvature.results.summary import ByName


@dataclass(frozen=True)
class Factors:
    """The block of one parameter of shape ``shape``.

    A weight has one pair of factors for each of its ``groups``: ``output`` [groups, O / g, O / g]
    and ``input_sum`` [groups, I / g * K, I / g * K], or [groups, I] where A is diagonal, as it is
    for an embedding. Other parameters have only a factor ``output`` [1, P, P]; a layer's bias may
    share it with the weight.

    ``entries`` [groups, O / g, I / g * K] has the index of each entry of W in the flattened
    parameter; None if they are in the same order.

    ``used`` is False for a parameter that no sample used, whose block is zero.
    """

    shape: tuple[int, ...]
    count: int
    output: Tensor
    input_sum: Tensor | None = None
    entries: Tensor | None = None
    used: bool = True

    @property
    def input(self) -> Tensor | None:
        """A: the average over all ``count`` samples."""
        return None if self.input_sum is None else self.input_sum / self.count

    @property
    def groups(self) -> int:
        """Number of independent blocks of a grouped convolution."""
        return self.output.shape[0]

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """[groups, O / g, I / g * K]; [1, P, 1] where there is one factor."""
        features = 1 if self.input_sum is None else self.input_sum.shape[1]
        return self.groups, self.output.shape[1], features

    def to_matrix(self, value: Tensor) -> Tensor:
        """[L.., *shape] as [L.., groups, O / g, I / g * K]."""
        flat = value.reshape(*value.shape[: value.dim() - len(self.shape)], prod(self.shape))
        if self.entries is not None:
            flat = flat[..., self.entries.flatten()]
        return flat.reshape(*flat.shape[:-1], *self.matrix_shape)

    def from_matrix(self, value: Tensor) -> Tensor:
        """[L.., groups, O / g, I / g * K] as [L.., *shape]."""
        flat = value.flatten(-3)
        if self.entries is not None:
            flat = torch.empty_like(flat).index_copy_(-1, self.entries.flatten(), flat)
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def dense(self) -> Tensor:
        """The block [P, P] in the order of the flattened parameter, zero between groups."""
        if self.input is None:
            return self.output[0]
        dense = [torch.diag(a) if a.dim() == 1 else a for a in self.input]
        blocks = [torch.kron(b, a) for b, a in zip(self.output, dense, strict=True)]
        matrix = torch.block_diag(*blocks)
        if self.entries is not None:
            order = self.entries.flatten().argsort()
            matrix = matrix[order][:, order]
        return matrix

    def product(self, value: Tensor) -> Tensor:
        """The block times vectors [L.., *shape]."""
        matrix = self.output @ self.to_matrix(value)
        a = self.input
        if a is not None:
            matrix = matrix * a.unsqueeze(1) if a.dim() == 2 else matrix @ a
        return self.from_matrix(matrix)

    def merge(self, other: Factors) -> Factors:
        """The sum over both data sets."""
        count = self.count + other.count
        if not other.used:
            return replace(self, count=count)
        if not self.used:
            return replace(other, count=count)
        if self.matrix_shape != other.matrix_shape or not same_entries(self.entries, other.entries):
            raise ValueError("the factors belong to different uses of the parameter")
        inputs = None
        if self.input_sum is not None and other.input_sum is not None:
            inputs = self.input_sum + other.input_sum
        output = self.output + other.output
        return replace(self, count=count, output=output, input_sum=inputs)


class Kronecker(ByName[Factors]):
    """Kronecker factors for each parameter."""

    def dense(self, name: str) -> Tensor:
        """The block [P, P] of a parameter in its own order: for small ones."""
        return self[name].dense()

    def merge(self, other: Kronecker) -> Kronecker:
        """The factors of both data sets together, exactly those of one pass over both."""
        summary = self.summary.merged(other.summary)
        factors: dict[str, Factors] = {}
        # A weight and a bias that share a tensor on both sides share the sum.
        sums: dict[tuple[int, int], Tensor] = {}
        for name, one in self.items():
            merged, key = one.merge(other[name]), (id(one.output), id(other[name].output))
            factors[name] = replace(merged, output=sums.setdefault(key, merged.output))
        return Kronecker(factors, summary)
