"""Exact where the features are few, the diagonal alone where they are many.

At a value of d features for each sample M is d x d. Where d is at most the threshold M is carried
as columns, M = sum_v s_v s_v^T; elsewhere only its diagonal m is kept. Going back, a wide value
turns columns into m = sum_v s_v², and a narrow one turns m into the d columns sqrt(m_j) e_j.
Columns of different origin are never added up: their cross terms were dropped before. So columns go
on alone, a few at a time, as far as values are narrow, and leave their squares where they end. On
the way they are compressed at a bottleneck, or are windows if they start at pixels, whichever
costs least. Where m enters a layer of narrow result and wide input, the rule of diagonals is exact,
and no columns are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod

import torch
from torch import Tensor

from lapkernels.curvature.backward.bottleneck import at_pixels, compress, cuts
from lapkernels.curvature.backward.budget import default_budget
from lapkernels.curvature.backward.columns import (
    Collector,
    accumulate,
    hand_out,
    naming,
    pull_columns,
    pull_weights,
)
from lapkernels.curvature.backward.cost import FORCED, Cut, column_cost, decomposition, windows_cost
from lapkernels.curvature.backward.diagonal import hand_out_diagonal
from lapkernels.curvature.backward.windows import local_layout, pull_local
from lapkernels.curvature.recording.graph import Graph, Section
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.likelihoods import Columns
from lapkernels.ops.base.chunks import slices
from lapkernels.ops.serving import choice
from lapkernels.rules.affine import Convolution, Linear
from lapkernels.rules.base.uses import is_constant


def pull_mixed(
    graph: Graph,
    start: Columns | Tensor,
    threshold: float,
    collector: Collector,
    found: Callable[[str, Tensor], None],
    budget: int | None,
) -> None:
    """Carry M back from the output, where it is given as columns or as a diagonal.

    ``collector`` gets columns and ``found`` each parameter's share of a diagonal.
    """
    size = graph.trace.prediction.element_size()
    allowed = default_budget(graph, size) if budget is None else budget
    step = max(1, allowed // (size * _entries(graph, threshold)))
    output, nodes = graph.trace.output, graph.sample_nodes
    mixed = _Mixed(graph, threshold, collector, step, allowed)
    if isinstance(start, Tensor):
        mixed.diagonals[id(output)] = start
    else:
        local = start.local()
        at = None if local is None else (len(local), partial(at_pixels, local))
        mixed.carry_all(output, start.count, start.chunk, len(nodes), at)
    for position in reversed(range(len(nodes))):
        node = nodes[position]
        outs = [mixed.diagonals.pop(id(value), None) for value in node.outputs]
        for index, (value, m) in enumerate(zip(node.outputs, outs, strict=True)):
            if m is not None and _narrow(value, threshold) and not mixed.widens(position):
                outs[index] = None
                count, chunk = value.features, partial(_as_columns, m, value)
                local = (value.shape[1], partial(_unit_columns_at, m)) if m.dim() > 2 else None
                mixed.carry_all(value, count, chunk, position + 1, local)
        if any(out is not None for out in outs):
            hand_out_diagonal(graph, position, outs, found)
            wanted = node.wanted
            if any(wanted):
                with naming(node):
                    parts = node.rule.diagonal(outs, wanted)
                _add(mixed.diagonals, node, parts, wanted)


@dataclass
class _Mixed:
    """Diagonals by value, where they have come to so far."""

    graph: Graph
    threshold: float
    collector: Collector
    step: int
    budget: int
    diagonals: dict[int, Tensor] = field(default_factory=dict)

    def widens(self, position: int) -> bool:
        """Whether a layer has wide inputs only, and parameters that no one else reads."""
        node = self.graph.sample_nodes[position]
        return (
            isinstance(node.rule, (Convolution, Linear))
            and all((position, index) in self.graph.shares for index in node.rule.uses)
            and not any(
                want and _narrow(value, self.threshold)
                for value, want in zip(node.inputs, node.wanted, strict=True)
            )
        )

    def carry_all(
        self,
        start: Value,
        count: int,
        chunk: Callable[[int, int], Tensor],
        last: int,
        local: tuple[int, Callable[[tuple[slice, ...]], Tensor]] | None,
    ) -> None:
        """``carry`` so many columns, made by ``chunk``; those behind a bottleneck are fewer.

        Columns that start at pixels are so many at each, and ``local`` makes those of a tile.
        """
        cut, cost = self._bottleneck(last, count)
        if local is not None and self._carry_windows(start, count, last, cost, *local):
            return
        if cut is not None:
            section = Section(cut.position, last, start, cut.value)
            fewer = None
            for some in slices(count, self.step):
                s = chunk(some.start, some.stop)
                part = pull_columns(self.graph, s, self.collector, section)
                fewer = fewer if part is None else compress(part, fewer, cut.value)
            if fewer is None:
                return
            made = fewer
            start, last, count = cut.value, cut.position, len(made)
            chunk = lambda first, last: made[first:last]  # noqa: E731
        for some in slices(count, self.step):
            self.carry(start, chunk(some.start, some.stop), last)

    def _carry_windows(
        self,
        start: Value,
        count: int,
        last: int,
        cost: float,
        columns: int,
        local: Callable[[tuple[slice, ...]], Tensor],
    ) -> bool:
        """Carry columns as windows to where values are wide, if that is less than ``cost``."""
        wide = [
            value
            for node in self.graph.sample_nodes[:last]
            for value in node.outputs
            if value is not start and not _narrow(value, self.threshold)
        ]
        section = Section(0, last, start, ends=tuple(wide))
        layout = local_layout(self.graph, section)
        wanted = choice("windows")
        if layout is None or wanted is False:
            return False
        if not wanted and windows_cost(self.graph, section, layout, count, self.budget) >= cost:
            return False

        def ended(value: Value, squares: Tensor) -> None:
            accumulate(self.diagonals, id(value), squares)

        way = (self.graph, layout, section, columns, local, self.collector, self.budget)
        for _ in pull_local(*way, ended):
            pass
        return True

    def _bottleneck(self, last: int, count: int) -> tuple[Cut | None, float]:
        """The cut before any wide value at which compression costs least, or none, and the cost."""
        narrow = [
            all(_narrow(value, self.threshold) for value in node.outputs)
            for node in self.graph.sample_nodes[:last]
        ]
        costs = [column_cost(self.graph, p) if narrow[p] else 0.0 for p in range(last)]
        wide = max((p for p in range(last) if not narrow[p]), default=-1)
        best: tuple[Cut | None, float] = (None, count * sum(costs))
        for cut in cuts(self.graph) if choice("compressed") is not False else []:
            d = cut.value.features
            if not (wide < cut.position < last and 0 < d < count):
                continue
            above, below = sum(costs[cut.position :]), sum(costs[: cut.position])
            compressed = FORCED if choice("compressed") else decomposition(count, d)
            cost = count * above + d * below + compressed * self.graph.trace.count
            if cost < best[1]:
                best = cut, cost
        return best

    def carry(self, start: Value, s: Tensor, last: int) -> None:
        """Carry columns at a value, made by a node before ``last``, through narrow values."""
        at = {id(start): s}
        waiting: list[tuple[Node, int, Tensor]] = []
        for position in reversed(range(last)):
            node = self.graph.sample_nodes[position]
            outs = [at.pop(id(value), None) for value in node.outputs]
            for index, (value, out) in enumerate(zip(node.outputs, outs, strict=True)):
                if out is not None and not _narrow(value, self.threshold):
                    accumulate(self.diagonals, id(value), out.square().sum(0))
                    outs[index] = None
            if any(out is not None for out in outs):
                hand_out(self.graph, position, outs, self.collector, waiting)
                wanted = node.wanted
                if any(wanted):
                    with naming(node):
                        parts = node.rule.columns(outs, wanted)
                    _add(at, node, parts, wanted)
        pull_weights(self.graph, waiting, s.shape[0], self.collector)


def _narrow(value: Value, threshold: float) -> bool:
    return value.samples is not None and value.features <= threshold


def _add(at: dict[int, Tensor], node: Node, parts: list[Tensor | None], wanted: list[bool]) -> None:
    for value, part, want in zip(node.inputs, parts, wanted, strict=True):
        if want and part is not None:
            accumulate(at, id(value), part)


def _entries(graph: Graph, threshold: float) -> int:
    """Most numbers that one column has at a node with a narrow result, before and after it."""
    most = 1
    for node in graph.sample_nodes:
        if any(_narrow(value, threshold) for value in node.outputs):
            inputs = [v for v, want in zip(node.inputs, node.wanted, strict=True) if want]
            most = max(most, sum(prod(value.shape) for value in (*inputs, *node.outputs)))
    return most


def _unit_columns_at(m: Tensor, where: tuple[slice, ...]) -> Tensor:
    """The columns sqrt(m_j) e_j of the features j of some pixels, [C, N, C, *pixels]."""
    root = m[(..., *where)].sqrt()
    channels = root.shape[1]
    unit = torch.eye(channels, dtype=m.dtype, device=m.device)
    return unit.reshape(channels, 1, channels, *(1,) * (m.dim() - 2)) * root


def _as_columns(m: Tensor, value: Value, first: int, last: int) -> Tensor:
    """The columns sqrt(m_j) e_j of the features first <= j < last, [k, *shape]."""
    assert value.samples is not None
    parts = value.samples.split(m)
    same = is_constant(parts)
    root = parts[:1] if same else parts
    root = root.flatten(1)[:, first:last].sqrt()  # [N, k], of one sample if all are the same
    columns = m.new_zeros(root.shape[1], len(root), value.features)
    columns.diagonal(first, 0, 2).copy_(root)
    columns = columns.unflatten(2, parts.shape[1:]).expand(-1, *parts.shape)
    return value.samples.join(columns, 1)
