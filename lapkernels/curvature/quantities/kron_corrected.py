r"""Kronecker factors with corrected eigenvalues: EKFAC.

The eigenvectors :math:`Q_B` and :math:`Q_A` of the factors give the basis :math:`Q_B \otimes Q_A`,
in which the block of a weight is almost diagonal. Its eigenvalues need not be the products of those
of B and A; the best ones are the second moments of the columns in that basis, which a second pass
over the data finds:

.. math:: \lambda = \sum_{n,v} (Q_B^T \, G_{n,v} \, Q_A)^2 .

This is the sum of squared Jacobians of the layer with rotated inputs and rotated columns: what is
held is the smaller of G and the unfolded input, of some samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels import ops
from lapkernels.curvature.data.autocast import for_models_alone
from lapkernels.curvature.data.batches import Output
from lapkernels.curvature.data.contents import Parameters, fingerprint
from lapkernels.curvature.data.processes import summed
from lapkernels.curvature.passes.passes import Route
from lapkernels.curvature.quantities.kron import Method, Sharing, kron
from lapkernels.curvature.quantities.loop import ColumnSum, Loop, OutputFactor, Sampler
from lapkernels.curvature.recording.graph import Share
from lapkernels.curvature.results.eigenbasis import Eigenbasis, eigenbases
from lapkernels.curvature.results.kronecker import Kronecker
from lapkernels.curvature.results.summary import ByName, Diagonal, finite
from lapkernels.likelihoods import resolve
from lapkernels.ops import Geometry
from lapkernels.rules import EmbeddingUse, WeightUse


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
            if not one.same_basis(other[name]):
                raise ValueError("eigenvalues add up in one basis only: give both calls one basis=")
            bases[name] = replace(one, values=one.values + other[name].values)
        return CorrectedKronecker(bases, summary)


@for_models_alone
@torch.no_grad()
def kron_corrected(
    model: nn.Module,
    data: Any,
    likelihood: Any = "gaussian",
    method: Method = "mc",
    sharing: Sharing = "expand",
    *,
    basis: Kronecker | CorrectedKronecker | None = None,
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

    With ``basis``, the result of ``kron``, there is only the second one. The result of an earlier
    call as ``basis`` gives the same eigenvectors without a decomposition.
    """
    noise = resolve(likelihood)
    options: dict[str, Any] = {
        "output": output, "samples": samples, "sampler": sampler, "memory_budget": memory_budget,
        "generator": generator, "progress": progress, "route": route,
    }  # fmt: skip
    if basis is None:
        if isinstance(data, Iterator):
            raise ValueError("data is an iterator, which cannot be read twice: give basis=")
        basis = kron(model, data, noise, method, sharing, params=params, **options)
    bases = eigenbases(basis) if isinstance(basis, Kronecker) else dict(basis)
    names, fitted = list(basis) if params is None else params, basis.summary.fingerprint

    @summed
    def second_moments(
        model: nn.Module, data: Any, method: str, generator: torch.Generator | None, progress: bool
    ) -> Diagonal:
        factor = OutputFactor(noise, method, samples, sampler, generator)
        loop = Loop(model, data, factor, names, output, memory_budget, progress, route)
        chosen = list(loop.chosen)
        if chosen != list(bases):
            raise ValueError(f"basis is of parameters {list(bases)}, but params chooses {chosen}")
        if fingerprint(loop.chosen) != fitted:
            raise ValueError("basis belongs to a different model, or to other parameter values")
        total = RotatedSquares(bases)
        loop.add_to(total)
        return Diagonal(finite(total.values), loop.summary(method))

    found = second_moments(model, data, method, generator, progress)
    corrected = {name: replace(one, values=found[name]) for name, one in bases.items()}
    return CorrectedKronecker(corrected, found.summary)


class RotatedSquares(ColumnSum):
    """sum_{n,v} (Q_Bᵀ G_{n,v} Q_A)², for each parameter."""

    def __init__(self, bases: dict[str, Eigenbasis]) -> None:
        self.bases = bases
        self.values = {name: torch.zeros_like(one.values) for name, one in bases.items()}

    def share(self, share: Share, s: Tensor) -> None:
        basis, use, total = self.bases[share.name], share.use, self.values[share.name]
        if isinstance(use, WeightUse) and basis.input is not None:
            for rotated in basis.rotated_rows(use, s):
                for value, (columns, x) in zip(total, rotated, strict=True):
                    ops.jacobian_squared_sum(columns, x, Geometry(), out=value)
        elif isinstance(use, EmbeddingUse) and basis.input is None and not share.chain:
            total.add_(use.squared_sum(s @ basis.output[0]).T)
        else:
            for columns, rows in use.chunks(s):
                self._add(share.name, share.jacobian(s[columns], rows))

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        self._add(name, g.reshape(*g.shape[:2], -1))

    def _add(self, name: str, g: Tensor) -> None:
        basis = self.bases[name]
        shaped = g.reshape(*g.shape[:2], *basis.factors.shape)
        self.values[name].add_(basis.rotate(basis.factors.to_matrix(shaped)).square().sum((0, 1)))
