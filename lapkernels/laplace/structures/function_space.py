r"""The posterior in function space: exact, at a cost in outputs of the training data, not in P.

Under the linearised model :math:`f \sim GP(0, J \Lambda^{-1} J^T)`. With the columns
:math:`s_{n,v}` of the output Hessians, the rows :math:`J_n^T s_{n,v}` of all training data are a
factor of the Gauss-Newton matrix, :math:`H = F F^T`, so that the Gaussian process posterior is that
of a factor of N V columns. The same numbers as structure "full", with a matrix [N V, N V] in place
of [P, P].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.quantities.joint import LIMIT, JointJacobians, check_limit
from lapkernels.curvature.quantities.loop import Loop, OutputFactor
from lapkernels.curvature.results.summary import Summary
from lapkernels.laplace.posterior import Posterior, Precision, Shapes
from lapkernels.laplace.structures.full import count_of
from lapkernels.laplace.structures.low_rank import FactorPosterior
from lapkernels.laplace.structures.structure import Packed, Structure, Subject


@dataclass(frozen=True)
class TrainingColumns:
    """Fᵀ [N V, P]: the Jacobian rows of all training data."""

    rows: Tensor
    summary: Summary

    def merge(self, other: TrainingColumns) -> TrainingColumns:
        """The rows of both data sets."""
        summary = self.summary.merged(other.summary)
        return TrainingColumns(torch.cat([self.rows, other.rows]), summary)


class Rows(JointJacobians):
    """All Jacobian rows, concatenated and cached."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__(parameters)
        self.rows: list[Tensor] = []

    def finish(self) -> None:
        for _, g in self.together(list(self.parameters)):
            self.rows.append(g.flatten(0, 1))
        self.clear()


@dataclass(frozen=True)
class FunctionSpace(Structure):
    """A Gaussian process on the training inputs; ``limit`` bytes are allowed for F."""

    methods = ("exact",)
    options = ("limit",)

    @torch.no_grad()
    def measure(self, subject: Subject, batch: Any, basis: Any) -> TrainingColumns:
        factor = OutputFactor(subject.likelihood, "exact")
        params = list(subject.parameters)
        loop = Loop(subject.model, batch, factor, params, subject.output, None, False, "auto")
        total = Rows(loop.chosen)
        for one in loop:
            columns = factor.likelihood.columns(one.prediction, one.target)
            shape = (columns.count * one.count, sum(p.numel() for p in loop.chosen.values()))
            size = shape[0] * shape[1] * one.prediction.element_size()
            limit = subject.options.get("limit", LIMIT)
            check_limit(size, limit, f"the Jacobian {list(shape)} of one batch")
            factor.pull(total.begin(one), total)
        return TrainingColumns(torch.cat(total.rows), loop.summary("exact"))

    def posterior(
        self, state: TrainingColumns, shapes: Shapes, precision: Precision, scale: Tensor
    ) -> Posterior:
        return FactorPosterior(shapes, precision, scale, state.rows.T)

    def pack(self, state: TrainingColumns) -> Packed:
        return Packed({"rows": state.rows}, {}, state.summary)

    def wrong_with(self, state: TrainingColumns, shapes: Shapes) -> str | None:
        size, found = count_of(shapes), tuple(state.rows.shape)
        return None if found[1:] == (size,) else f"rows of shape {found}, not (.., {size})"

    def unpack(self, packed: Packed, basis: Any) -> TrainingColumns:
        return TrainingColumns(packed.tensors["rows"], packed.summary)
