"""Exact where the features are few, the diagonal alone where they are many.

At a value of d features for each sample M is d x d. Where d is at most the threshold M is carried
as columns, M = sum_v s_v s_v^T; elsewhere only its diagonal m is kept. Going back, a wide value
turns columns into m = sum_v s_v², and a narrow one turns m into the d columns sqrt(m_j) e_j.
Columns of different origin are never added up: their cross terms were dropped before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import prod

import torch
from torch import Tensor

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


@dataclass
class Moment:
    """M at a value: columns by their origin, and a diagonal beside them."""

    columns: dict[int, Tensor] = field(default_factory=dict)
    diagonal: Tensor | None = None


def pull_mixed(
    plan: Plan,
    start: Moment,
    threshold: float,
    collector: Collector,
    found: Callable[[str, Tensor], None],
) -> None:
    """Carry M back from the output, switching at every value by its number of features."""
    origins = count(1)
    at: dict[int, Moment] = {id(plan.trace.output): start}
    waiting: dict[int, list[tuple[Node, int, Tensor]]] = {}
    for position in reversed(range(len(plan.sample_nodes))):
        node = plan.sample_nodes[position]
        moments = [_settled(at.pop(id(v), None), v, threshold, origins) for v in node.outputs]
        wanted = [value.active and value.samples is not None for value in node.inputs]
        for origin in {origin for moment in moments for origin in moment.columns}:
            outs = [moment.columns.get(origin) for moment in moments]
            hand_out(plan, position, outs, collector, waiting.setdefault(origin, []))
            if any(wanted):
                with naming(node):
                    parts = node.rule.columns(outs, wanted)
                for value, part in _used(node, parts, wanted):
                    columns = at.setdefault(id(value), Moment()).columns
                    columns[origin] = part if origin not in columns else columns[origin] + part
        diagonals = [moment.diagonal for moment in moments]
        if any(diagonal is not None for diagonal in diagonals):
            hand_out_diagonal(plan, position, diagonals, found)
            if any(wanted):
                with naming(node):
                    parts = node.rule.diagonal(diagonals, wanted)
                for value, part in _used(node, parts, wanted):
                    moment = at.setdefault(id(value), Moment())
                    known = moment.diagonal
                    moment.diagonal = part if known is None else known + part
    for entries in waiting.values():
        if entries:
            pull_weights(plan, entries, entries[0][2].shape[0], collector)


def features(value: Value) -> int:
    """Number of features of each sample."""
    assert value.samples is not None
    return prod(value.shape) // value.samples.count


def _used(node: Node, parts: list[Tensor | None], wanted: list[bool]) -> list[tuple[Value, Tensor]]:
    triples = zip(node.inputs, parts, wanted, strict=True)
    return [(value, part) for value, part, want in triples if want and part is not None]


def _settled(moment: Moment | None, value: Value, threshold: float, origins: count[int]) -> Moment:
    """M in the form its value is carried in, after all of it has come in."""
    if moment is None or value.samples is None:
        return Moment()
    if features(value) > threshold:
        at = {0: moment.diagonal} if moment.diagonal is not None else {}
        for columns in moment.columns.values():
            accumulate(at, 0, columns.square().sum(0))
        return Moment(diagonal=at.get(0))
    columns = dict(moment.columns)
    if moment.diagonal is not None:
        columns[next(origins)] = _as_columns(moment.diagonal, value)
    return Moment(columns)


def _as_columns(m: Tensor, value: Value) -> Tensor:
    """The columns sqrt(m_j) e_j, [d, *shape]."""
    assert value.samples is not None
    parts = value.samples.split(m)
    root = parts.flatten(1).sqrt()  # [N, d]
    unit = torch.eye(root.shape[1], dtype=m.dtype, device=m.device).unsqueeze(1)
    columns = (unit * root).reshape(root.shape[1], *parts.shape)
    return value.samples.join(columns, 1)
