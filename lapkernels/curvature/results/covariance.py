r"""Covariances of parameters for the linearised predictive, in independent blocks.

A block gives its share of :math:`J \Sigma J^T` by a root, :math:`\Sigma = R R^T`: with
:math:`\mathrm{root}(g) = g R` it is :math:`\mathrm{root}(g) \, \mathrm{root}(g')^T`. Variances are
weighted sums of squares, so none is ever negative. Diagonal and Kronecker-factored blocks need no
Jacobian.
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
    """The covariance of the parameters ``names`` together; others are independent of them.

    Its coordinates are independent: g Σ gᵀ is a sum of their squares with ``weights`` [R].
    Covariances of the same coordinates differ in the weights alone.
    """

    names: tuple[str, ...]
    weights: Tensor

    @abstractmethod
    def coordinates(self, g: Tensor) -> Tensor:
        """Coordinates [L.., R] of Jacobian rows ``g`` [L.., P], parameters in their order."""

    def root(self, g: Tensor) -> Tensor:
        """g R, [L.., R], with Σ = R Rᵀ."""
        return self.coordinates(g) * self.weights.sqrt()

    def squared_norm(self, g: Tensor, weights: Tensor | None = None) -> Tensor:
        """g Σ gᵀ of each row, [L..], of rows ``g`` [L.., P], or [L.., K] of ``weights`` [K, R]."""
        square = self.coordinates(g).square()
        return square @ (self.weights if weights is None else weights.T)

    def of_share(
        self, share: Share, s: Tensor, joint: bool, weights: Tensor | None = None
    ) -> Tensor | None:
        """G Σ Gᵀ of columns ``s`` at the only use of a parameter, without G in memory.

        [N, V, V] if ``joint``, its diagonals [N, V] if not, those of other ``weights`` [K, R] are
        [K, N, V]; None where it takes G.
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

    @property
    def weights(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.variance.flatten()

    def coordinates(self, g: Tensor) -> Tensor:
        return g

    def of_share(
        self, share: Share, s: Tensor, joint: bool, weights: Tensor | None = None
    ) -> Tensor | None:
        if weights is not None:
            each = [share.to_weight(row.view_as(self.variance)) for row in weights]
            return torch.stack([share.use.squared_dot(s, variance) for variance in each])
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

    @property
    def weights(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.basis.values.flatten()

    def coordinates(self, g: Tensor) -> Tensor:
        shaped = g.reshape(*g.shape[:-1], *self.basis.factors.shape)
        return self.basis.rotate(self.basis.factors.to_matrix(shaped)).flatten(-3)

    def of_share(
        self, share: Share, s: Tensor, joint: bool, weights: Tensor | None = None
    ) -> Tensor | None:
        if not isinstance(share.use, WeightUse) or self.basis.input is None:
            return None
        op = ops.jacobian_gram if joint else ops.jacobian_squared_dot
        each = (self.weights if weights is None else weights).reshape(-1, *self.basis.values.shape)
        parts = []
        for rotated in self.basis.rotated_rows(share.use, s):
            shares: list[Tensor] = []
            for group, (columns, x) in enumerate(rotated):
                own = [values[group].contiguous() for values in each]
                shares.append(torch.stack([op(columns, x, value, Geometry()) for value in own]))
            parts.append(torch.stack(shares).sum(0))
        found = torch.cat(parts, 1)
        return found[0] if weights is None else found
