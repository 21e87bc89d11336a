r"""The interface of a posterior of any structure.

The posterior is :math:`N(\theta^*, A^{-1})` with :math:`A = c H + \Lambda`: H the curvature of the
summed negative log-likelihood, :math:`\Lambda` the prior's precision, and c a factor that rescales
the likelihood, such as the noise that H was measured with over the noise assumed now.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from lapkernels.curvature import CovarianceBlock, Refused
from lapkernels.curvature.results.decompositions import check_finite

Precision = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
Self = TypeVar("Self", bound="Posterior")


@dataclass(frozen=True, eq=False)
class Posterior(ABC):
    """A Gaussian of one structure around the trained parameters.

    ``shapes`` has the uncertain parameters, ``precision`` Λ by name (a number or a tensor of the
    parameter's shape, float64), ``scale`` the factor c.
    """

    shapes: Shapes
    precision: Precision
    scale: Tensor

    def rescaled(self: Self, precision: Precision, scale: Tensor) -> Self:
        """The same curvature with another prior; decompositions of H are kept."""
        return replace(self, precision=precision, scale=scale)

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """log |A|, float64, differentiable in ``precision`` and ``scale``."""

    @abstractmethod
    def product(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A v, of tensors by name."""

    @abstractmethod
    def solve(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A⁻¹ v, of tensors by name, zero for entries that count as known."""

    @abstractmethod
    def variance(self) -> dict[str, Tensor]:
        """Diagonal of the covariance A⁻¹ by name, zero for entries that count as known."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draws of θ - θ*, [count, *shape] by name."""

    def blocks(self) -> list[CovarianceBlock]:
        """A⁻¹ in independent blocks, for the linearised predictive."""
        return [block for block, _ in self.families(self.scale.new_ones(1))]

    @abstractmethod
    def families(self, factors: Tensor) -> list[tuple[CovarianceBlock, Tensor]]:
        """Independent blocks of (c H + t Λ)⁻¹ for each t of ``factors`` [K].

        Each is a block of the first t and its weights [K, R] for all of them.
        """

    def effective_count(self, factor: float = 1.0) -> float:
        """γ = tr(c H (c H + t Λ)⁻¹): how many parameters the data determine with the prior t Λ."""
        log = self.scale.log().detach().requires_grad_()
        with torch.enable_grad():
            precision = {name: factor * value for name, value in self.precision.items()}
            value = self.rescaled(precision, log.exp()).log_determinant()
        return float(torch.autograd.grad(value, log)[0])

    def uncertain(self, name: str) -> Tensor | None:
        """Which entries of a parameter are uncertain, a mask of its shape; None if all are."""
        return None

    def uncertain_count(self) -> int:
        """The number of uncertain entries."""
        masks = {name: self.uncertain(name) for name in self.shapes}
        return sum(prod(self.shapes[k]) if m is None else int(m.sum()) for k, m in masks.items())

    def log_prior_determinant(self) -> Tensor:
        """log |Λ| over all uncertain entries."""
        total = self.scale.new_zeros(())
        for name, shape in self.shapes.items():
            mask, value = self.uncertain(name), self.precision[name]
            log = value.log()
            if mask is not None:
                total = total + (log * mask).sum()
            else:
                total = total + (log.sum() if value.dim() else log * prod(shape))
        return total

    def prior_quadratic(self, theta: Mapping[str, Tensor]) -> Tensor:
        """θᵀ Λ θ over all uncertain entries."""
        total = self.scale.new_zeros(())
        for name in self.shapes:
            mask, square = self.uncertain(name), theta[name].detach().double().square()
            square = square if mask is None else square * mask
            total = total + (self.precision[name] * square).sum()
        return total

    def effective(self, groups: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
        """γ of each group: how many of its parameters the data determine, sum_p (1 - λ_p σ²_p)."""
        variance = self.variance()
        found: dict[str, float] = {}
        for key, names in groups.items():
            total = 0.0
            for name in names:
                share = 1 - self.precision[name].detach() * variance[name].double()
                mask = self.uncertain(name)
                total += float((share if mask is None else share * mask).sum())
            found[key] = max(total, 0.0)
        return found


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Independent standard normal numbers of the dtype and on the device of ``like``."""
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def one_number(precision: Precision, name: str, structure: str) -> Tensor:
    """The one precision of a parameter, for structures that rotate its entries."""
    value = precision[name]
    if value.dim():
        raise Refused(
            f"structure {structure!r} needs one prior precision for all entries of {name}; "
            "prior='parameter' or 'layer' works, or structure 'diag', 'blocks' or 'full'"
        )
    return value


def positive(values: Tensor, what: str) -> Tensor:
    """The values; raises unless all are positive and finite."""
    if not bool(((values > 0) & values.isfinite()).all()):
        what = f"the posterior precision of {what}"
        check_finite(values, what)
        raise Refused(
            f"{what} holds {float(values.detach().min()):.3g}: raise the prior precision; if the "
            "curvature is a Hessian, train closer to a minimum or use a Gauss-Newton method "
            "(method='exact')"
        )
    return values
