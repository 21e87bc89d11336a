r"""The Hessian of the summed negative log-likelihood, for every model autograd can differentiate.

Column p of the Hessian is its product with a unit vector; several unit vectors go at once. Autograd
keeps the graph of the backward pass too, so samples go in parts. The diagonal costs as many
products as there are parameters: it is for small models, and a check of cheaper curvatures. Unlike
a Gauss-Newton diagonal it may be negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from lapkernels.curvature.by_autograd.products import (
    BUDGET,
    check_samples,
    graph_of,
    hessian_products,
)
from lapkernels.curvature.data.batches import Batch, Observed, Output, batches_of
from lapkernels.curvature.data.contents import Contents, Parameters, check_mode, parameters_of
from lapkernels.curvature.data.processes import summed
from lapkernels.curvature.passes.passes import progress_bar
from lapkernels.curvature.quantities.loop import with_labels
from lapkernels.curvature.recording.targets import check_outputs, with_targets
from lapkernels.curvature.results.summary import Diagonal, Summary, by_name, finite
from lapkernels.likelihoods import Likelihood, resolve
from lapkernels.ops.base.chunks import slices


@summed
def hessian_diag(
    model: nn.Module,
    data: Any,
    likelihood: Any = "gaussian",
    *,
    params: Parameters = None,
    output: Output = None,
    memory_budget: int | None = None,
    progress: bool = False,
) -> Diagonal:
    """Exact diagonal of the Hessian, by parameter name. ``data`` needs labels."""
    noise = resolve(likelihood)
    contents = Contents.of(model)
    chosen = parameters_of(contents, params)
    check_mode(contents)
    first = next(iter(chosen.values()))
    diagonal = first.new_zeros(sum(p.numel() for p in chosen.values())).detach()

    def add(start: int, rows: Tensor) -> None:
        diagonal[start : start + len(rows)] += rows.diagonal(start)

    count = hessian_rows(model, data, noise, chosen, add, output, memory_budget, progress)
    values = by_name(diagonal, {name: p.shape for name, p in chosen.items()})
    return Diagonal(finite(values), Summary.of(count, chosen, "hessian", noise))


def hessian_rows(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    chosen: dict[str, nn.Parameter],
    add: Callable[[int, Tensor], None],
    output: Output,
    memory_budget: int | None,
    progress: bool,
) -> int:
    """Call ``add(first, rows [k, P])`` for all rows of every batch; the number of samples."""
    count, observed = 0, Observed.of(data)
    for number, batch in enumerate(with_targets(model, batches_of(observed.data))):
        with_labels(batch.target, "the Hessian needs")
        f, parts, budget = _parts(model, batch, likelihood, chosen, output, memory_budget)
        observed.see(f, batch.target)
        size = sum(p.numel() for p in chosen.values())
        rows_of = {"total": size * len(parts), "unit": "row", "desc": f"batch {number}"}
        with progress_bar(**rows_of) if progress else nullcontext() as bar:
            for part in parts:
                for first, rows in _rows(model, part, likelihood, chosen, output, budget):
                    add(first, rows)
                    if bar is not None:
                        bar.update(len(rows))
        count += batch.count
    return count


def _parts(
    model: nn.Module,
    batch: Batch,
    likelihood: Likelihood,
    chosen: dict[str, nn.Parameter],
    output: Output,
    budget: int | None,
) -> tuple[Tensor, list[Batch], int]:
    """Outputs of a batch, independent samples in parts, and bytes for the vectors through a part.

    Half of the budget is for the graphs of a part's forward and backward passes.
    """
    with graph_of(model, batch, chosen, output) as graph:
        whole, again = graph.look([batch], twice=True), graph.look(batch.halves(), twice=True)
        check_outputs(likelihood, whole, batch)
        check_samples(graph, batch, whole, again)
        size = graph.entries * whole.element_size()
    allowed = max(size, BUDGET) if budget is None else budget
    step = max(1, batch.count * allowed // max(1, 4 * size))
    starts = range(0, batch.count, step)
    return whole, [batch.part(n, min(step, batch.count - n)) for n in starts], allowed // 2


def _rows(
    model: nn.Module,
    batch: Batch,
    likelihood: Likelihood,
    chosen: dict[str, nn.Parameter],
    output: Output,
    budget: int,
) -> Iterator[tuple[int, Tensor]]:
    """Chunks of rows: the first one's index, and the rows [k, P]."""
    with graph_of(model, batch, chosen, output) as graph:
        graph.look([batch], twice=True)
        f = graph.keep(twice=True)
        product = hessian_products(graph, likelihood, batch.target)
        for some in slices(graph.size, graph.chunk(budget, graph.entries)):
            unit = f.new_zeros(len(range(graph.size)[some]), graph.size)
            unit.diagonal(some.start).fill_(1.0)
            yield some.start, product(unit).detach()
