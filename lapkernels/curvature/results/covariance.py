r"""Covariances of parameters for the linearised predictive, in independent blocks.

A block gives its share of :math:`J \Sigma J^T` by a root, :math:`\Sigma = R R^T`: with
:math:`\mathrm{root}(g) = g R` it is :math:`\mathrm{root}(g) \, \mathrm{root}(g')^T`. Variances are
sums of squares, so none is ever negative. Diagonal and Kronecker-factored blocks need no Jacobian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lapkernels import ops
from lapkernels.curvature.recording.graph import Share
from lapkernels.curvature.results.eigenbasis import Eigenbasis
from lapkernels.ops import Geometry
from lapkernels.rules import WeightUse


class CovarianceBlock(ABC):
    """The covariance of the parameters ``names`` together; others are independent of them."""

    names: tuple[str, ...]

    @abstractmethod
    def root(self, g: Tensor) -> Tensor:
        """g R, [L.., R], of Jacobian rows ``g`` [L.., P] over the parameters in their order."""

    def squared_norm(self, g: Tensor) -> Tensor:
        """g Σ gᵀ of each row, [L..], of rows ``g`` [L.., P]."""
        return self.root(g).square_().sum(-1)

    def of_share(self, share: Share, s: Tensor, joint: bool) -> Tensor | None:
        """G Σ Gᵀ of columns ``s`` at the only use of a parameter, without G in memory.

        [N, V, V] if ``joint``, its diagonals [N, V] if not; None where it takes G.
        """
        return None


@dataclass(frozen=True)
class IndependentEntries(CovarianceBlock):
    """A variance for each entry of one parameter, of its shape."""

    name: str
    variance: Tensor

    @property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.name,)

    def root(self, g: Tensor) -> Tensor:
        return g * self.variance.flatten().sqrt()

    def squared_norm(self, g: Tensor) -> Tensor:
        return g.square() @ self.variance.flatten()

    def of_share(self, share: Share, s: Tensor, joint: bool) -> Tensor | None:
        variance = share.to_weight(self.variance)
        return share.use.gram(s, variance) if joint else share.use.squared_dot(s, variance)


@dataclass(frozen=True)
class KroneckerEigenbasis(CovarianceBlock):
    """Q diag(values) Qᵀ of one parameter, Q a Kronecker product.

    With rotated inputs and columns it has independent entries, those of a Linear layer.
    """

    name: str
    basis: Eigenbasis

    @property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.name,)

    def root(self, g: Tensor) -> Tensor:
        shaped = g.reshape(*g.shape[:-1], *self.basis.factors.shape)
        rotated = self.basis.rotate(self.basis.factors.to_matrix(shaped))
        return (rotated * self.basis.values.sqrt()).flatten(-3)

    def of_share(self, share: Share, s: Tensor, joint: bool) -> Tensor | None:
        if not isinstance(share.use, WeightUse) or self.basis.input is None:
            return None
        op = ops.jacobian_gram if joint else ops.jacobian_squared_dot
        parts = []
        for rotated in self.basis.rotated_rows(share.use, s):
            shares = [
                op(columns, x, self.basis.values[group].contiguous(), Geometry())
                for group, (columns, x) in enumerate(rotated)
            ]
            parts.append(torch.stack(shares).sum(0))
        return torch.cat(parts)
