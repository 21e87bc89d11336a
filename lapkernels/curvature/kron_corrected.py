r"""Kronecker factors with corrected eigenvalues: EKFAC.

The eigenvectors :math:`Q_B` and :math:`Q_A` of the factors give the basis :math:`Q_B \otimes Q_A`,
in which the block of a weight is almost diagonal. Its eigenvalues need not be the products of those
of B and A; the best ones are the second moments of the columns in that basis, which a second pass
over the data finds:

.. math:: \lambda = \sum_{n,v} (Q_B^T \, G_{n,v} \, Q_A)^2 .

This is the sum of squared Jacobians of the layer with rotated inputs and rotated columns, so it is
never needed to hold G, only the unfolded and rotated input of some samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels import ops
from lapkernels.curvature.diag import Sampler, columns_into
from lapkernels.curvature.kron import Method, Sharing, kron
from lapkernels.curvature.kronecker import Factors, Kronecker
from lapkernels.curvature.parameter_uses import features_last
from lapkernels.curvature.passes import Route, passes
from lapkernels.curvature.plan import Share
from lapkernels.curvature.selection import Output, Parameters
from lapkernels.curvature.state import ByName, Summary, fingerprint
from lapkernels.curvature.steps import jacobian_rows
from lapkernels.curvature.walk import Collector
from lapkernels.likelihoods import resolve
from lapkernels.ops import Geometry
from lapkernels.rules import EmbeddingUse, WeightUse, row_chunks


@dataclass(frozen=True)
class Eigenbasis:
    """A block Q diag(values) Qᵀ of one parameter, Q = output ⊗ input.

    ``output`` is [groups, O / g, O / g], ``input`` [groups, I / g * K, I / g * K], or None for the
    identity; ``values`` is [groups, O / g, I / g * K]. ``factors`` knows the parameter's layout.
    """

    factors: Factors
    output: Tensor
    input: Tensor | None
    values: Tensor

    def rotate(self, matrix: Tensor) -> Tensor:
        """Q_Bᵀ G Q_A of G [L.., groups, O / g, I / g * K]."""
        matrix = self.output.mT @ matrix
        return matrix if self.input is None else matrix @ self.input

    def dense(self) -> Tensor:
        """The block [P, P] in the order of the flattened parameter: for small ones."""
        size = prod(self.factors.shape)
        unit = torch.eye(size, dtype=self.values.dtype, device=self.values.device)
        matrix = self.factors.to_matrix(unit.reshape(size, *self.factors.shape))
        rotated = self.rotate(matrix).flatten(1)
        return (rotated * self.values.flatten()) @ rotated.T


class CorrectedKronecker(ByName[Eigenbasis]):
    """Eigenvectors of Kronecker factors with second moments as eigenvalues, by parameter name."""

    def dense(self, name: str) -> Tensor:
        """The block [P, P] of a parameter in its own order: for small ones."""
        return self[name].dense()

    def merge(self, other: CorrectedKronecker) -> CorrectedKronecker:
        """Of both data sets together, if both were made with one ``basis``."""
        summary = self.summary.merged(other.summary)
        bases: dict[str, Eigenbasis] = {}
        for name, one in self.items():
            if one.factors is not other[name].factors:
                raise ValueError("eigenvalues add up in one basis only: give both calls one basis=")
            bases[name] = replace(one, values=one.values + other[name].values)
        return CorrectedKronecker(bases, summary)


@torch.no_grad()
def kron_corrected(
    model: nn.Module,
    data: Any,
    likelihood: Any = "gaussian",
    method: Method = "mc",
    sharing: Sharing = "expand",
    *,
    basis: Kronecker | None = None,
    params: Parameters = None,
    output: Output = None,
    samples: int = 1,
    sampler: Sampler = "labels",
    memory_budget: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    route: Route = "auto",
) -> CorrectedKronecker:
    """Kronecker eigenvectors with corrected eigenvalues: two passes over ``data``.

    With ``basis``, the result of ``kron``, there is only the second one.
    """
    noise = resolve(likelihood)
    if basis is None:
        if isinstance(data, Iterator):
            raise ValueError("data is an iterator, which cannot be read twice: give basis=")
        basis = kron(
            model,
            data,
            noise,
            method,
            sharing,
            params=params,
            output=output,
            samples=samples,
            sampler=sampler,
            memory_budget=memory_budget,
            generator=generator,
            progress=progress,
            route=route,
        )
    chosen, batches = passes(
        model,
        data,
        params=list(basis) if params is None else params,
        output=output,
        memory_budget=memory_budget,
        progress=progress,
        route=route,
    )
    if list(chosen) != list(basis):
        raise ValueError(f"basis is of parameters {list(basis)}, but params chooses {list(chosen)}")
    if fingerprint(chosen) != basis.summary.fingerprint:
        raise ValueError("basis belongs to a different model, or to other parameter values")
    total = RotatedSquares({name: _eigenbasis(factors) for name, factors in basis.items()})
    count = 0
    for one in batches:
        noise.check(one.prediction, one.target)
        columns_into(one, noise, method, samples, sampler, generator, total)
        count += one.count
    return CorrectedKronecker(total.bases, Summary.of(count, chosen, method, noise))


class RotatedSquares(Collector):
    """sum_{n,v} (Q_Bᵀ G_{n,v} Q_A)², for each parameter."""

    def __init__(self, bases: dict[str, Eigenbasis]) -> None:
        self.bases = bases

    def share(self, share: Share, s: Tensor) -> None:
        basis, use = self.bases[share.name], share.use
        if isinstance(use, WeightUse) and basis.input is not None:
            self._add_weight(basis, use, s)
        elif isinstance(use, EmbeddingUse) and basis.input is None and not share.chain:
            basis.values.add_(use.squared_sum(s @ basis.output[0]).T)
        else:
            for rows in row_chunks(use.count, s.shape[0] * prod(use.shape)):
                self._add(basis, jacobian_rows(share, s, rows))

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        self._add(self.bases[name], g.reshape(*g.shape[:2], -1))

    def _add(self, basis: Eigenbasis, g: Tensor) -> None:
        shaped = g.reshape(*g.shape[:2], *basis.factors.shape)
        basis.values.add_(basis.rotate(basis.factors.to_matrix(shaped)).square().sum((0, 1)))

    def _add_weight(self, basis: Eigenbasis, use: WeightUse, s: Tensor) -> None:
        """The layer as a Linear one over its positions, group by group."""
        assert basis.input is not None
        arranged, groups = use.arrange(s), basis.factors.groups
        features = basis.input.shape[1]
        for rows in row_chunks(use.count, use.positions * groups * features):
            x = ops.unfolded(use.x()[rows], use.geometry) @ basis.input.unsqueeze(0)
            part = features_last(arranged[:, rows], use.geometry).unflatten(3, (groups, -1))
            for group in range(groups):
                columns = part[:, :, :, group] @ basis.output[group]
                value = basis.values[group]
                ops.jacobian_squared_sum(columns, x[:, group], Geometry(), out=value)


def _eigenbasis(factors: Factors) -> Eigenbasis:
    output = torch.linalg.eigh(factors.output).eigenvectors
    inputs = None
    if factors.input_sum is not None and factors.input_sum.dim() == 3:
        inputs = torch.linalg.eigh(factors.input_sum).eigenvectors
    return Eigenbasis(factors, output, inputs, output.new_zeros(factors.matrix_shape))
