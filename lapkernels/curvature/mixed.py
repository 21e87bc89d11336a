"""Exact where the features are few, the diagonal alone where they are many.

At a value of d features for each sample M is d x d. Where d is at most the threshold M is carried
as columns, M = sum_v s_v s_v^T; elsewhere only its diagonal m is kept. Going back, a wide value
turns columns into m = sum_v s_v², and a narrow one turns m into the d columns sqrt(m_j) e_j.
Columns of different origin are never added up: their cross terms were dropped before. So columns go
on alone, a few at a time, as far as values are narrow, and leave their squares where they end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from torch import Tensor

from lapkernels.curvature.budget import default_budget
from lapkernels.curvature.diagonal_walk import hand_out_diagonal
from lapkernels.curvature.plan import Plan
from lapkernels.curvature.trace import Node, Value
from lapkernels.curvature.walk import (
    Collector,
    accumulate,
    hand_out,
    naming,
    pull_weights,
)
from lapkernels.likelihoods import Columns
from lapkernels.ops.chunks import slices


def pull_mixed(
    plan: Plan,
    start: Columns | Tensor,
    threshold: float,
    collector: Collector,
    found: Callable[[str, Tensor], None],
    budget: int | None,
) -> None:
    """Carry M back from the output, where it is given as columns or as a diagonal.

    ``collector`` gets columns and ``found`` each parameter's share of a diagonal.
    """
    size = plan.trace.prediction.element_size()
    allowed = default_budget(plan, size) if budget is None else budget
    step = max(1, allowed // (size * _entries(plan, threshold)))
    output, nodes = plan.trace.output, plan.sample_nodes
    mixed = _Mixed(plan, threshold, collector)
    if isinstance(start, Tensor):
        mixed.diagonals[id(output)] = start
    else:
        for some in slices(start.count, step):
            mixed.carry(output, start.chunk(some.start, some.stop), len(nodes))
    for position in reversed(range(len(nodes))):
        node = nodes[position]
        outs = [mixed.diagonals.pop(id(value), None) for value in node.outputs]
        for index, (value, m) in enumerate(zip(node.outputs, outs, strict=True)):
            if m is not None and _narrow(value, threshold):
                outs[index] = None
                for some in slices(features(value), step):
                    mixed.carry(value, _as_columns(m, value, some), position + 1)
        if any(out is not None for out in outs):
            hand_out_diagonal(plan, position, outs, found)
            wanted = _wanted(node)
            if any(wanted):
                with naming(node):
                    parts = node.rule.diagonal(outs, wanted)
                _add(mixed.diagonals, node, parts, wanted)


@dataclass
class _Mixed:
    """Diagonals by value, where they have come to so far."""

    plan: Plan
    threshold: float
    collector: Collector
    diagonals: dict[int, Tensor] = field(default_factory=dict)

    def carry(self, start: Value, s: Tensor, last: int) -> None:
        """Carry columns at a value, made by a node before ``last``, through narrow values."""
        at = {id(start): s}
        waiting: list[tuple[Node, int, Tensor]] = []
        for position in reversed(range(last)):
            node = self.plan.sample_nodes[position]
            outs = [at.pop(id(value), None) for value in node.outputs]
            for index, (value, out) in enumerate(zip(node.outputs, outs, strict=True)):
                if out is not None and not _narrow(value, self.threshold):
                    accumulate(self.diagonals, id(value), out.square().sum(0))
                    outs[index] = None
            if any(out is not None for out in outs):
                hand_out(self.plan, position, outs, self.collector, waiting)
                wanted = _wanted(node)
                if any(wanted):
                    with naming(node):
                        parts = node.rule.columns(outs, wanted)
                    _add(at, node, parts, wanted)
        pull_weights(self.plan, waiting, s.shape[0], self.collector)


def features(value: Value) -> int:
    """Number of features of each sample."""
    assert value.samples is not None
    return prod(value.shape) // value.samples.count


def _narrow(value: Value, threshold: float) -> bool:
    return value.samples is not None and features(value) <= threshold


def _wanted(node: Node) -> list[bool]:
    return [value.active and value.samples is not None for value in node.inputs]


def _add(at: dict[int, Tensor], node: Node, parts: list[Tensor | None], wanted: list[bool]) -> None:
    for value, part, want in zip(node.inputs, parts, wanted, strict=True):
        if want and part is not None:
            accumulate(at, id(value), part)


def _entries(plan: Plan, threshold: float) -> int:
    """Most numbers that one column has at a node with a narrow result, before and after it."""
    most = 1
    for node in plan.sample_nodes:
        if any(_narrow(value, threshold) for value in node.outputs):
            inputs = [v for v, want in zip(node.inputs, _wanted(node), strict=True) if want]
            most = max(most, sum(prod(value.shape) for value in (*inputs, *node.outputs)))
    return most


def _as_columns(m: Tensor, value: Value, some: slice) -> Tensor:
    """The columns sqrt(m_j) e_j of the features j in ``some``, [k, *shape]."""
    assert value.samples is not None
    parts = value.samples.split(m)
    root = parts.flatten(1)[:, some].sqrt()  # [N, k]
    columns = m.new_zeros(root.shape[1], parts.shape[0], features(value))
    columns.diagonal(some.start, 0, 2).copy_(root)
    return value.samples.join(columns.reshape(root.shape[1], *parts.shape), 1)
