r"""The Hessian of the summed negative log-likelihood, for every model autograd can differentiate.

Column p of the Hessian is its product with a unit vector; unit vectors go through the model in
chunks. The diagonal costs as many products as there are parameters: it is meant for small models,
and as a check of cheaper curvatures. Unlike a Gauss-Newton diagonal it may be negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from lapkernels.curvature.products import check_samples, graph_of, hessian_products
from lapkernels.curvature.selection import (
    Output,
    Parameters,
    batches_of,
    check_mode,
    parameters_of,
)
from lapkernels.curvature.state import Diagonal, Summary, slices_of
from lapkernels.likelihoods import Likelihood, resolve


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
    chosen = parameters_of(model, params)
    check_mode(model)
    where = slices_of(chosen)
    first = next(iter(chosen.values()))
    diagonal = first.new_zeros(sum(p.numel() for p in chosen.values())).detach()

    def add(start: int, rows: Tensor) -> None:
        diagonal[start : start + len(rows)] += rows.diagonal(start)

    count = hessian_rows(
        model,
        data,
        noise,
        chosen,
        add,
        output=output,
        memory_budget=memory_budget,
        progress=progress,
    )
    values = {name: diagonal[where[name]].reshape(p.shape) for name, p in chosen.items()}
    return Diagonal(values, Summary.of(count, chosen, "hessian", noise))


def hessian_rows(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    chosen: dict[str, nn.Parameter],
    add: Callable[[int, Tensor], None],
    *,
    output: Output,
    memory_budget: int | None,
    progress: bool,
) -> int:
    """Call ``add(first, rows [k, P])`` for all rows of every batch; the number of samples."""
    count = 0
    for number, batch in enumerate(batches_of(data)):
        if batch.target is None:
            raise ValueError("the Hessian needs labels: give batches (inputs, labels)")
        with graph_of(model, batch, chosen, output) as graph:
            f = graph.look(batch.halves(), twice=True)
            likelihood.check(f, batch.target)
            graph.keep(twice=True)
            check_samples(graph, batch, f)
            product = hessian_products(graph, likelihood, batch.target)
            size, step = graph.size, graph.chunk(memory_budget, graph.entries)
            for start in _starts(size, step, number, progress):
                stop = min(start + step, size)
                unit = f.new_zeros(stop - start, size)
                unit.diagonal(start).fill_(1.0)
                add(start, product(unit).detach())
        count += batch.count
    return count


def _starts(size: int, step: int, number: int, progress: bool) -> Iterator[int]:
    if not progress:
        yield from range(0, size, step)
        return
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    with tqdm(total=size, unit="row", desc=f"batch {number}") as bar:
        for start in range(0, size, step):
            yield start
            bar.update(min(step, size - start))
