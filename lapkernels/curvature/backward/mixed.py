"""Exact where the features are few, the diagonal alone where they are many.

At a value of d features for each sample M is d x d. Where d is at most the threshold M is carried
as columns, M = sum_v s_v s_v^T; elsewhere only its diagonal m is kept. In the backward pass columns
become m = sum_v s_v² at a wide value, and m becomes the d columns sqrt(m_j) e_j at a narrow one.
Columns of different origin are never added: their cross terms were dropped before. So they are
pulled back alone, a few at a time, as far as values are narrow, and add their squares there. They
may be compressed at a bottleneck, or windows if they start at pixels, whichever costs least. Where
m enters a layer of narrow result and wide input, the diagonal rule is exact, and no columns are
made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor

from lapkernels.curvature.backward.carry import Plan, carry
from lapkernels.curvature.backward.columns import Collector, arriving, go_back, put
from lapkernels.curvature.backward.diagonal import (
    diagonals_below,
    hand_out_diagonal,
    pull_weight_diagonals,
)
from lapkernels.curvature.recording.graph import Graph
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.likelihoods import Columns
from lapkernels.rules.base.uses import is_constant


def pull_mixed(
    graph: Graph,
    plan: Plan,
    start: Columns | Tensor,
    collector: Collector,
    found: Callable[[str, Tensor], None],
) -> None:
    """Pull M back from the output, where it is given as columns or as a diagonal.

    ``collector`` gets columns and ``found`` each parameter's share of a diagonal.
    """
    at: dict[int, Tensor] = {}
    weights: dict[int, Tensor] = {}

    def ended(value: Value, squares: Tensor) -> None:
        put(at, value, squares)

    if isinstance(start, Tensor):
        at[id(graph.trace.output)] = start
    else:
        local = start.local()
        root = None if local is None else local.root
        carry(graph, plan.stages, start.chunk, root, collector, ended=ended)

    def visit(
        position: int, node: Node, outs: list[Tensor | None]
    ) -> Iterable[tuple[Value, Tensor]]:
        for index, (value, m) in enumerate(zip(node.outputs, outs, strict=True)):
            if m is not None and (position, index) in plan.columns:
                chunk, root = partial(_as_columns, m, value), m.sqrt().unsqueeze(0)
                stages = plan.columns[position, index]
                carry(graph, stages, chunk, root, collector, ended=ended)
                outs[index] = None
        if all(out is None for out in outs):
            return ()
        hand_out_diagonal(graph, position, outs, found, weights)
        return arriving(node, diagonals_below(node, outs))

    go_back(graph.sample_nodes, range(len(graph.sample_nodes)), at, visit)
    pull_weight_diagonals(graph, weights, found)


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
