r"""The whole curvature matrix, in the order of ``torch.nn.utils.parameters_to_vector``.

Gauss-Newton: :math:`\sum_n J_n^T H_n J_n`, or its sampled or empirical sibling. Hessian: the second
derivative of the summed negative log-likelihood, which may be indefinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.autocast import for_models_alone
from lapkernels.curvature.data.batches import Output, check_choice
from lapkernels.curvature.data.contents import Parameters
from lapkernels.curvature.data.processes import summed
from lapkernels.curvature.passes.passes import Route
from lapkernels.curvature.quantities.hessian import hessian_rows
from lapkernels.curvature.quantities.joint import LIMIT, JointBlocks
from lapkernels.curvature.quantities.loop import Loop, OutputFactor, Sampler
from lapkernels.curvature.results.summary import Summary, finite, slices_of
from lapkernels.likelihoods import resolve

Method = Literal["exact", "mc", "empirical", "hessian"]


@dataclass(frozen=True)
class Full:
    """A curvature matrix [P, P], a sum over ``summary.count`` samples.

    ``slices`` says where each parameter lies, flattened row-major.
    """

    matrix: Tensor
    slices: dict[str, slice]
    summary: Summary

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.summary.count

    def block(self, row: str, column: str | None = None) -> Tensor:
        """Rows of one parameter, columns of another, or of the same."""
        return self.matrix[self.slices[row], self.slices[column or row]]

    def merge(self, other: Full) -> Full:
        """The sum over both data sets."""
        summary = self.summary.merged(other.summary)
        return Full(self.matrix + other.matrix, self.slices, summary)


@summed
@for_models_alone
def full(
    model: nn.Module,
    data: Any,
    likelihood: Any = "gaussian",
    method: Method = "exact",
    *,
    params: Parameters = None,
    output: Output = None,
    samples: int = 1,
    sampler: Sampler = "labels",
    memory_budget: int | None = None,
    limit: int = LIMIT,
    entries: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    explain: bool = False,
    route: Route = "auto",
) -> Full:
    """The matrix of all chosen parameters. More than ``limit`` bytes are refused.

    ``entries`` has flat indices of entries by parameter name: the matrix is then of those alone.
    """
    check_choice("method", method, Method)
    factor = OutputFactor(resolve(likelihood), method, samples, sampler, generator)
    options = (params, output, memory_budget, progress, route)
    loop = Loop(model, data, factor, *options, explain=explain)
    chosen = loop.chosen
    if entries is not None:
        if method == "hessian":
            raise ValueError("entries= needs a Gauss-Newton method, not 'hessian'")
        if set(entries) != set(chosen):
            raise ValueError(f"entries has {list(entries)}, but params chooses {list(chosen)}")
    total = JointBlocks(chosen, {"": list(chosen)}, limit, entries)
    matrix = total.matrices[""]
    if method == "hessian":

        def add(first: int, rows: Tensor) -> None:
            matrix[first : first + len(rows)] += rows

        own = (output, memory_budget, progress)
        loop.count = hessian_rows(model, data, factor.likelihood, chosen, add, *own)
    else:
        with torch.no_grad():
            loop.add_to(total)
    sizes = chosen if entries is None else {name: entries[name] for name in chosen}
    slices = slices_of(sizes)
    finite({name: matrix[rows] for name, rows in slices.items()})
    return Full(matrix, slices, loop.summary(method))
