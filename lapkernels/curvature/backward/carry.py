"""Plans, and executing their stages: columns, windows, autograd; fewer columns at a bottleneck.

Where all columns pass one value of d features, M = S^T S there is d x d for each sample. If V > d
the V columns S [V, d] are replaced by the d rows of R from S = Q R, since R^T R = S^T S. That is
exact, also for a rank-deficient S, and forms no square of S. Sums that are quadratic in the columns
(a diagonal, a block, a Kronecker factor) are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from lapkernels.curvature.backward.chains import Chain
from lapkernels.curvature.backward.columns import (
    Collector,
    Waiting,
    hand_out_one,
    naming,
    pull_columns,
    pull_weights,
)
from lapkernels.curvature.backward.layout import Layout
from lapkernels.curvature.backward.start import Start
from lapkernels.curvature.backward.windows import pull_windows
from lapkernels.curvature.recording.graph import Graph, Section
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.ops.base.precision import widened
from lapkernels.rules import Samples
from lapkernels.rules.base.shared import joined

Carrier = Literal["columns", "windows", "autograd"]
# Carriers of columns at one node.
Route = Literal["columns", "windows", "autograd", "shared", "scaled weights"]
# Makes columns first <= v < last, [last - first, *shape].
Chunk = Callable[[int, int], Tensor]


@dataclass(frozen=True)
class Stage:
    """``count`` columns that pass a section together.

    ``step`` of them go at a time, or those that start at so many pixels if they are windows, which
    ``layout`` places; these ``start`` at an image behind the columns' own entry. At the nodes
    ``once`` columns are the same for all samples. ``scaled`` has, by the position of an activation,
    the layer whose weight is scaled by its derivative. Columns that were compressed are a
    ``triangular`` matrix. ``cost`` is in multiply-adds, ``entries`` are the numbers alive at once.
    """

    section: Section
    carrier: Carrier
    count: int
    step: int
    cost: float
    entries: int
    reason: str
    layout: Layout | None = None
    start: Start | None = None
    once: frozenset[int] = frozenset()
    scaled: Mapping[int, int] = field(default_factory=dict)
    triangular: bool = False

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Ranges of columns that are carried at a time."""
        for first in range(0, self.count, self.step):
            yield first, min(first + self.step, self.count)

    def passed(self, graph: Graph) -> Iterable[tuple[int, Node]]:
        """Its nodes, the last one first; autograd passes ops without a rule."""
        if self.carrier == "autograd":
            return reversed(list(enumerate(graph.sample_nodes)))
        return self.section.passed(graph)

    def route(self, position: int) -> Route:
        """The carrier of columns at the results of a node."""
        if self.carrier == "autograd":
            return "autograd"
        if self.layout is not None and position in self.layout.passed:
            return "windows"
        if position in self.scaled.values():
            return "scaled weights"
        return "shared" if position in self.once else "columns"


@dataclass(frozen=True)
class Plan:
    """All that a call pulls back.

    Columns that start at the output go through ``stages``. A diagonal passes the nodes
    ``diagonal``: those in ``chains`` with the layers below, those in ``activations`` with the
    activation before. It becomes columns at the results (position, index) in ``columns``.
    """

    stages: tuple[Stage, ...] = ()
    diagonal: tuple[int, ...] = ()
    chains: Mapping[int, Chain] = field(default_factory=dict)
    activations: Mapping[int, int] = field(default_factory=dict)
    columns: Mapping[tuple[int, int], tuple[Stage, ...]] = field(default_factory=dict)


def carry(
    graph: Graph,
    stages: Sequence[Stage],
    chunk: Chunk,
    local: Tensor | None,
    collector: Collector,
    *,
    ended: Callable[[Value, Tensor], None] | None = None,
    finish: bool = False,
) -> None:
    """Carry columns through stages to the parameters.

    ``chunk`` makes columns at the first stage's entry, ``local`` [J, N, *entry] are the columns
    that start at single entries, or at sets of them, all in one tensor. ``ended``
    gets the sum of the squares of columns at an end of a section. ``finish`` tells the
    collector when a step of columns is complete.
    """
    for stage in stages:
        fewer: Tensor | None = None
        for part in _pulled(graph, stage, chunk, local, collector, ended):
            if finish:
                collector.finish()
            if part is not None and stage.section.exit is not None:
                fewer = compress(part, fewer, stage.section.exit)
        if fewer is None:
            return
        chunk = partial(_rows, fewer)


def _pulled(
    graph: Graph,
    stage: Stage,
    chunk: Chunk,
    local: Tensor | None,
    collector: Collector,
    ended: Callable[[Value, Tensor], None] | None,
) -> Iterator[Tensor | None]:
    """A few columns at a time; yields those at the stage's exit."""
    if stage.carrier == "windows":
        assert local is not None and stage.layout is not None and stage.start is not None
        where = (graph, stage.section, stage.layout, stage.step)
        yield from pull_windows(*where, stage.start.local(graph, local), collector, ended)
        return

    def squared(value: Value, s: Tensor) -> None:
        assert ended is not None
        ended(value, s.square().sum(0))

    for first, last in stage.chunks():
        if stage.carrier == "autograd":
            autograd_columns(graph, chunk(first, last), collector)
            yield None
        else:
            # The columns are not held here while the next ones are made.
            yield pull_columns(
                graph, chunk(first, last), collector, stage.section, stage.scaled, squared
            )


def _rows(columns: Tensor, first: int, last: int) -> Tensor:
    return columns[first:last]


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


def autograd_columns(graph: Graph, s: Tensor, collector: Collector) -> None:
    """Pull columns back by autograd, one at a time, to the ops that use a weight.

    In a batch of one the gradient of a parameter is its Jacobian, however it is used.
    """
    trace = graph.trace
    f = trace.differentiable
    assert f is not None
    alone = trace.count == 1
    found = [
        (position, index, node.edges[0])
        for position, node in enumerate(graph.sample_nodes)
        for index in node.rule.uses
        if node.edges and node.edges[0] is not None
        if not alone or ((position, index) in graph.shares and not trace.hidden)
    ]
    named = {graph.shares[position, index].name for position, index, _ in found if alone}
    direct = [name for name in trace.parameters if alone and name not in named]
    targets = [edge for _, _, edge in found]
    targets += [get_gradient_edge(trace.leaves[name]) for name in direct]
    if not targets:
        return
    # The gradients of each target, column by column.
    grads = zip(
        *(
            torch.autograd.grad(f, targets, column, retain_graph=True, allow_unused=True)
            for column in s.to(f.dtype)
        ),
        strict=True,
    )
    waiting: Waiting = []
    for target, parts in zip([*found, *direct], grads, strict=True):
        some = [part for part in parts if part is not None]
        if not some:
            continue
        g = widened(torch.stack(some) if len(some) > 1 else some[0].unsqueeze(0))
        if isinstance(target, str):
            collector.jacobian(target, g.unsqueeze(1), slice(0, 1))
        else:
            position, index, _ = target
            with naming(graph.sample_nodes[position]):
                hand_out_one(graph, position, index, g, collector, waiting)
    pull_weights(graph, waiting, len(s), collector)
