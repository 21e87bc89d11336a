"""Fewer columns behind a bottleneck: rank compression of the exact curvature.

Where all columns pass one value of d features, M = S^T S there is d x d for each sample. If V > d
the V columns S [V, d] are replaced by the d rows of R from S = Q R, since R^T R = S^T S. Nothing is
lost, also where S has not full rank, and no square of S is ever formed. A sum over columns of
anything quadratic in them, a diagonal, a block or a Kronecker factor, does not see the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

from lapkernels.curvature.budget import column_chunks, default_budget
from lapkernels.curvature.local import Layout, local_layout, pull_local
from lapkernels.curvature.plan import Plan, Section
from lapkernels.curvature.trace import Value
from lapkernels.curvature.walk import Collector, pull_columns
from lapkernels.likelihoods import Columns
from lapkernels.rules import WeightUse

# Time of a multiply-add inside a QR decomposition, in units of one inside a matrix product.
QR_COST = 4.0


@dataclass(frozen=True)
class Cut:
    """A value that all columns pass, behind the sample nodes from ``position`` on."""

    position: int
    value: Value


def cuts(plan: Plan) -> list[Cut]:
    """All cuts, from the output on."""
    live = {id(plan.trace.output)}
    values = {id(plan.trace.output): plan.trace.output}
    shared = _shared_range(plan)
    found = []
    for position in reversed(range(len(plan.sample_nodes))):
        node = plan.sample_nodes[position]
        live -= {id(value) for value in node.outputs}
        for value in node.inputs:
            if value.active and value.samples is not None:
                live.add(id(value))
                values[id(value)] = value
        if len(live) == 1 and not shared[0] < position <= shared[1]:
            found.append(Cut(position, values[next(iter(live))]))
    return found


def _shared_range(plan: Plan) -> tuple[int, int]:
    """First and last node that use a weight whose Jacobians are added up over uses."""
    places = [
        position
        for position, node in enumerate(plan.sample_nodes)
        if any((position, index) not in plan.shares for index in node.rule.uses)
    ]
    return (min(places), max(places)) if places else (0, 0)


def pull_compressed(plan: Plan, columns: Columns, collector: Collector, budget: int | None) -> None:
    """Carry columns back to the parameters, as windows and compressed where that pays."""
    size = plan.trace.prediction.element_size()
    allowed = default_budget(plan, size) if budget is None else budget
    entry, last = plan.trace.output, len(plan.sample_nodes)
    count, chunk, local = columns.count, columns.chunk, columns.local()
    whole = None if local is None else local_layout(plan, Section.whole(plan))
    for cut in [*chosen_cuts(plan, count, whole), None]:
        first = 0 if cut is None else cut.position
        section = Section(first, last, entry, None if cut is None else cut.value)
        layout = None if local is None else local_layout(plan, section)
        if layout is None or local is None:
            parts = _chunks(plan, section, count, chunk, collector, allowed)
        else:
            parts = pull_local(plan, layout, section, local, collector, allowed)
        compressed = None
        for part in parts:
            if cut is not None:
                compressed = compress(part, compressed, cut.value)
        if cut is None or compressed is None:
            return
        entry, last, count, local = cut.value, cut.position, compressed.shape[0], None
        chunk = partial(_rows, compressed)


def _rows(columns: Tensor, first: int, last: int) -> Tensor:
    return columns[first:last]


def _chunks(
    plan: Plan,
    section: Section,
    count: int,
    chunk: Callable[[int, int], Tensor],
    collector: Collector,
    budget: int,
) -> Iterator[Tensor]:
    """Plain columns, a few at a time; yields them at the section's exit."""
    size = plan.trace.prediction.element_size()
    for first, end in column_chunks(plan, count, budget, size, section):
        part = pull_columns(plan, chunk(first, end), collector, section)
        if part is not None:
            yield part


def compress(s: Tensor, known: Tensor | None, value: Value) -> Tensor:
    """At most d columns with the second moment of ``s`` and ``known`` together, [r, *shape]."""
    assert value.samples is not None
    both = s if known is None else torch.cat([known, s])
    parts = value.samples.split(both, 1)  # [V, N, *shape']
    rows = parts.flatten(2).transpose(0, 1)  # [N, V, d]
    if parts.stride(1) == 0:
        rows = rows[:1]
    if rows.shape[1] <= rows.shape[2]:
        return both
    r = torch.linalg.qr(rows, mode="r").R  # [N, d, d]
    columns = r.transpose(0, 1).expand(-1, parts.shape[1], -1)
    return value.samples.join(columns.reshape(-1, *parts.shape[1:]), 1)


def chosen_cuts(plan: Plan, count: int, layout: Layout | None) -> list[Cut]:
    """The cuts to compress at for the least cost in all.

    Up to the first cut columns may be windows, with the layout of the whole way back.
    """
    whole, windowed = [0.0], [0.0]
    for position in range(len(plan.sample_nodes)):
        cost = node_cost(plan, position)
        whole.append(whole[-1] + cost)
        windowed.append(windowed[-1] + cost * _share(plan, position, layout))
    # Ways to have come to a cut: cost so far, columns from there on, its position, the cuts taken.
    ways: list[tuple[float, int, int, list[Cut]]] = [(0.0, count, len(plan.sample_nodes), [])]
    for cut in cuts(plan):
        assert cut.value.samples is not None
        samples = cut.value.samples.count
        d = prod(cut.value.shape) // samples
        arrived = []
        for cost, v, last, taken in ways:
            below = whole if taken else windowed
            carried = v * (below[last] - below[cut.position])
            compressed = QR_COST * v * d * d * samples
            if v > d:
                arrived.append((cost + carried + compressed, d, cut.position, [*taken, cut]))
        if arrived:
            ways.append(min(arrived, key=lambda way: way[0]))
    rest = [way[0] + way[1] * (whole if way[3] else windowed)[way[2]] for way in ways]
    return ways[rest.index(min(rest))][3]


def _share(plan: Plan, position: int, layout: Layout | None) -> float:
    """How much of an image the windows at a node's result are."""
    value = plan.sample_nodes[position].outputs[0]
    place = None if layout is None else layout.places.get(id(value))
    return 1.0 if place is None else prod(place.width) / prod(value.shape[2:])


def node_cost(plan: Plan, position: int) -> int:
    """Multiply-adds of one column at a node: pulled back, and its share of the parameters."""
    node = plan.sample_nodes[position]
    cost = 0
    for value in (*node.inputs, *node.outputs):
        if value.active and value.samples is not None:
            cost += prod(value.shape)
    for use in node.rule.uses.values():
        if isinstance(use, WeightUse):
            products = prod(use.shape) * use.positions * use.count
            cost += products if use.positions == 1 else 2 * products
    return cost
