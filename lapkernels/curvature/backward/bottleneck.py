"""Fewer columns behind a bottleneck: rank compression of the exact curvature.

Where all columns pass one value of d features, M = S^T S there is d x d for each sample. If V > d
the V columns S [V, d] are replaced by the d rows of R from S = Q R, since R^T R = S^T S. Nothing is
lost, also where S has not full rank, and no square of S is ever formed. A sum over columns of
anything quadratic in them, a diagonal, a block or a Kronecker factor, does not see the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from lapkernels.curvature.backward.budget import column_chunks, default_budget
from lapkernels.curvature.backward.columns import Collector, pull_columns
from lapkernels.curvature.backward.cost import Cut, Way, chosen_way
from lapkernels.curvature.backward.windows import local_layout, pull_local
from lapkernels.curvature.recording.graph import Graph, Section, once_per_graph
from lapkernels.curvature.recording.trace import Value
from lapkernels.likelihoods import Columns
from lapkernels.rules import Samples
from lapkernels.rules.base.shared import is_shared, joined


@once_per_graph
def cuts(graph: Graph) -> list[Cut]:
    """All cuts, from the output on."""
    live = {id(graph.trace.output)}
    values = {id(graph.trace.output): graph.trace.output}
    shared = _shared_range(graph)
    found = []
    for position in reversed(range(len(graph.sample_nodes))):
        node = graph.sample_nodes[position]
        live -= {id(value) for value in node.outputs}
        for value in node.inputs:
            if value.active and value.samples is not None:
                live.add(id(value))
                values[id(value)] = value
        if len(live) == 1 and not shared[0] < position <= shared[1]:
            found.append(Cut(position, values[next(iter(live))]))
    return found


def _shared_range(graph: Graph) -> tuple[int, int]:
    """First and last node that use a weight whose Jacobians are added up over uses."""
    places = [
        position
        for position, node in enumerate(graph.sample_nodes)
        if any((position, index) not in graph.shares for index in node.rule.uses)
    ]
    return (min(places), max(places)) if places else (0, 0)


def pull_compressed(
    graph: Graph, columns: Columns, collector: Collector, budget: int | None
) -> None:
    """Carry columns back to the parameters, as windows and compressed where that pays."""
    size = graph.trace.prediction.element_size()
    allowed = default_budget(graph, size) if budget is None else budget
    entry, last = graph.trace.output, len(graph.sample_nodes)
    count, chunk, local = columns.count, columns.chunk, columns.local()
    shared = columns.shared
    way = way_of(graph, columns, local is not None, allowed)
    if not way.windows:
        local = None
    for cut in [*way.cuts, None]:
        first = 0 if cut is None else cut.position
        section = Section(first, last, entry, None if cut is None else cut.value)
        layout = None if local is None else local_layout(graph, section)
        if layout is None or local is None:
            parts = _chunks(graph, section, count, chunk, shared, collector, allowed)
        else:
            parts = pull_local(
                graph, layout, section, len(local), partial(at_pixels, local), collector, allowed
            )
        compressed = None
        for part in parts:
            if cut is not None:
                compressed = compress(part, compressed, cut.value)
        if cut is None or compressed is None:
            return
        entry, last, count, local = cut.value, cut.position, compressed.shape[0], None
        chunk, shared = partial(_rows, compressed), is_shared(compressed)


def way_of(graph: Graph, columns: Columns, images: bool, budget: int) -> Way:
    """The cheapest way back for these columns, which may start at pixels of ``images``."""
    return _way(graph, columns.count, columns.shared, images, budget)


@once_per_graph
def _way(graph: Graph, count: int, shared: bool, images: bool, budget: int) -> Way:
    layout = local_layout(graph, Section.whole(graph)) if images else None
    return chosen_way(graph, cuts(graph), count, layout=layout, shared=shared, budget=budget)


def at_pixels(local: Tensor, where: tuple[slice, ...]) -> Tensor:
    """Columns [J, N, C, *pixels] of some pixels out of those of all."""
    return local[(..., *where)]


def _rows(columns: Tensor, first: int, last: int) -> Tensor:
    return columns[first:last]


def _chunks(
    graph: Graph,
    section: Section,
    count: int,
    chunk: Callable[[int, int], Tensor],
    shared: bool,
    collector: Collector,
    budget: int,
) -> Iterator[Tensor]:
    """Plain columns, a few at a time; yields them at the section's exit."""
    size = graph.trace.prediction.element_size()
    for first, end in column_chunks(graph, count, budget, size, section, shared):
        part = pull_columns(graph, chunk(first, end), collector, section)
        if part is not None:
            yield part


def compress(s: Tensor, known: Tensor | None, value: Value) -> Tensor:
    """At most d columns with the second moment of ``s`` and ``known`` together, [r, *shape]."""
    assert value.samples is not None
    both = s if known is None else joined([known, s])
    parts = value.samples.split(both, 1)  # [V, N, *shape']
    rows = parts.flatten(2).transpose(0, 1)  # [N, V, d]
    if rows.shape[1] <= rows.shape[2]:
        return both
    once = parts.stride(1) == 0
    r = torch.linalg.qr(rows[:1] if once else rows, mode="r").R  # [N, d, d]
    columns = r.transpose(0, 1)
    if once and value.samples == Samples(len(rows)):
        return columns.unflatten(2, both.shape[2:]).expand(-1, *both.shape[1:])
    columns = columns.expand(-1, len(rows), -1)
    return value.samples.join(columns.reshape(-1, *parts.shape[1:]), 1)
