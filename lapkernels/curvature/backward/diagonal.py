"""Diagonals over a recorded graph: curvature backward, or variances forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from lapkernels.curvature.backward.chains import Found
from lapkernels.curvature.backward.columns import go_back, naming, put
from lapkernels.curvature.backward.planner import plan_diagonal
from lapkernels.curvature.recording.graph import Graph, once_per_graph
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.rules.shape import Movement

# What is at a value: a diagonal, and a gradient if both are pulled back. For an operand that stands
# twice, the diagonal is counted once and the gradient twice.
Both = tuple[Tensor | None, Tensor | None]


def pull_diagonal(
    graph: Graph, m: Tensor, found: Found, g: Tensor | None = None, gradient: Found | None = None
) -> None:
    """Pull the diagonal ``m`` [*output] back; ``found`` gets each parameter's share, a new tensor.

    The gradient ``g`` [*output] is pulled back with it where ``passes_both``, and ``gradient`` gets
    its shares. A chain of layers is passed in one call. Elsewhere an activation in front of a layer
    is fused with it if the layer can multiply by the squared derivative.
    """
    plan = plan_diagonal(graph)
    weights: dict[int, Tensor] = {}

    def visit(position: int, node: Node, outs: list[Both | None]) -> Iterable[tuple[Value, Both]]:
        chain, first = plan.chains.get(position), outs[0]
        diagonal, column = (None, None) if first is None else first
        if chain is not None and diagonal is not None and chain.takes(diagonal):
            below, slope = chain.pull(diagonal, found, column, gradient)
            return [] if below is None else [(chain.below, (below, slope))]
        diagonals = [None if out is None else out[0] for out in outs]
        hand_out_diagonal(graph, position, diagonals, found, weights)
        before = plan.activations.get(position)
        activation = None if before is None else graph.sample_nodes[before]
        parts = diagonals_below(node, diagonals, activation)
        slopes: Sequence[Tensor | None] = [None] * len(parts)
        if g is not None and any(node.wanted):
            columns = [None if out is None or out[1] is None else out[1][None] for out in outs]
            pulled = zip(node.rule.columns(columns, node.wanted), node.wanted, strict=True)
            slopes = [s[0] if want and s is not None else None for s, want in pulled]
        values = inputs_behind(node, activation)
        return [
            (value, (part, slope))
            for value, part, slope in zip(values, parts, slopes, strict=True)
            if part is not None or slope is not None
        ]

    at: dict[int, Both] = {id(graph.trace.output): (m, g)}
    go_back(graph.sample_nodes, range(len(graph.sample_nodes)), at, visit, add=_added)
    pull_weight_diagonals(graph, weights, found)


def _added(known: Both, part: Both) -> Both:
    diagonal, gradient = (
        b if a is None else a if b is None else a + b for a, b in zip(known, part, strict=True)
    )
    return diagonal, gradient


def passes_both(graph: Graph, like: Tensor) -> bool:
    """Whether a diagonal and a gradient of a kind ``like`` a tensor can be pulled back together."""
    linked = plan_diagonal(graph).chains
    return _chains_hold_all(graph) and all(chain.takes(like) for chain in linked.values())


@once_per_graph
def _chains_hold_all(graph: Graph) -> bool:
    """Whether every parameter belongs to a chain."""
    linked = plan_diagonal(graph).chains
    inside = {id(link.layer) for chain in linked.values() for link in chain.links}
    alone = [node for node in graph.sample_nodes if id(node) not in inside]
    return not graph.weight_nodes and not any(
        node.rule.uses or node.rule.passes_activation for node in alone
    )


def push_variance(graph: Graph, variance: Mapping[str, Tensor]) -> Tensor:
    """Push the variances of parameters forward to the output: the transpose of ``pull_diagonal``.

    Every op is transposed alone, so that no graph of all ops is in memory, and a variance is freed
    after the last op that reads it.
    """
    at: dict[int, Tensor] = {}
    weights = _weight_variances(graph, variance)
    nodes, plan = graph.sample_nodes, plan_diagonal(graph)
    before = {position: nodes[below] for position, below in plan.activations.items()}
    passed = set(plan.activations.values())
    steps = [
        (position, inputs_behind(node, before.get(position)))
        for position, node in enumerate(nodes)
        if position not in passed
    ]
    last = {id(value): position for position, inputs in steps for value in inputs}
    last[id(graph.trace.output)] = len(nodes)
    for position, inputs in steps:
        known = [at.get(id(value)) for value in inputs]
        for value in inputs:
            if last[id(value)] == position:
                at.pop(id(value), None)
        results = nodes[position].outputs
        outputs = [value for value in results if value.active and id(value) in last]
        pushed = _push(graph, position, known, outputs, before.get(position), weights)
        at.update(zip(map(id, outputs), pushed, strict=True))
    return at[id(graph.trace.output)]


def _push(
    graph: Graph,
    position: int,
    known: list[Tensor | None],
    outputs: list[Value],
    before: Node | None,
    weights: Mapping[int, Tensor],
) -> list[Tensor]:
    """Variances at some results of a node from those known at its operands and at ``weights``."""
    node = graph.sample_nodes[position]
    own = {index: weights[id(node.inputs[index])] for index in node.rule.uses}
    with naming(node):
        x = {index: v for index, v in enumerate(known) if v is not None}
        direct = node.rule.variance(x, own, None if before is None else before.rule)
    if direct is not None:
        return [direct]

    def diagonals(outs: Sequence[Tensor | None]) -> Iterator[tuple[Tensor | None, Tensor | None]]:
        for index, use in node.rule.uses.items() if outs[0] is not None else ():
            assert outs[0] is not None
            yield use.squared(outs[0]), own[index]
        parts = diagonals_below(node, outs, before, [v is not None for v in known])
        yield from zip(parts, known, strict=True)

    return _transposed(graph, node, outputs, diagonals)


def _weight_variances(graph: Graph, variance: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Variances at weights, by their id, from those of parameters."""
    at = {id(value): variance[name] for name, value in graph.trace.parameters.items()}
    for node in graph.weight_nodes:
        known = [at.get(id(value)) for value in node.inputs]
        outputs = [value for value in node.outputs if value.active and id(value) in graph.readers]
        rule = node.rule
        if isinstance(rule, Movement) and rule.one_to_one and len(known) == 1:
            assert known[0] is not None
            at[id(node.outputs[0])] = rule.push(known[0])
            continue

        def diagonals(
            outs: Sequence[Tensor | None], node: Node = node, known: list[Tensor | None] = known
        ) -> Iterator[tuple[Tensor | None, Tensor | None]]:
            parts = node.rule.diagonal(outs, [v is not None for v in known])
            yield from zip(parts, known, strict=True)

        at.update(zip(map(id, outputs), _transposed(graph, node, outputs, diagonals), strict=True))
    return at


def _transposed(
    graph: Graph,
    node: Node,
    outputs: list[Value],
    diagonals: Callable[[Sequence[Tensor | None]], Iterable[tuple[Tensor | None, Tensor | None]]],
) -> list[Tensor]:
    """Variances at some results of a node.

    From a diagonal m at the results the rule computes D(m) at operands and weights, linear in m:
    ``diagonals`` yields each with the variance v there. The transpose maps these to the gradient of
    <v, D(m)> in m, the same at every m.
    """
    like = graph.trace.prediction
    m = {id(one): like.new_zeros(one.shape, dtype=one.dtype).requires_grad_() for one in outputs}
    with naming(node), torch.enable_grad():
        found = diagonals([m.get(id(value)) for value in node.outputs])
        pairs = [(d, v) for d, v in found if d is not None and v is not None and d.requires_grad]
        total: tuple[Tensor | None, ...] = (None,) * len(m)
        if pairs:
            given = ([d for d, _ in pairs], list(m.values()), [v for _, v in pairs])
            total = torch.autograd.grad(*given, allow_unused=True)
    return [
        one.detach() if part is None else part for part, one in zip(total, m.values(), strict=True)
    ]


def inputs_behind(node: Node, before: Node | None) -> list[Value]:
    """The values a node reads; for a fused activation, its operand."""
    return node.inputs if before is None else [before.inputs[0], *node.inputs[1:]]


def diagonals_below(
    node: Node,
    outs: Sequence[Tensor | None],
    before: Node | None = None,
    wanted: Sequence[bool] | None = None,
) -> list[Tensor | None]:
    """Diagonals at the values a node reads, None where they are not wanted."""
    wanted = node.wanted if wanted is None else wanted
    if not any(wanted):
        return [None] * len(wanted)
    if before is None:
        parts = node.rule.diagonal(outs, wanted)
    else:
        parts = node.rule.diagonal_through(outs, wanted, before.rule)
    return [part if want else None for part, want in zip(parts, wanted, strict=True)]


def hand_out_diagonal(
    graph: Graph,
    position: int,
    outs: Sequence[Tensor | None],
    found: Found,
    weights: dict[int, Tensor],
) -> None:
    """Hand every parameter of a node its share of a diagonal at the node's result.

    Shares of weights that are no parameter, or have other uses too, are added to ``weights``.
    """
    node, out = graph.sample_nodes[position], outs[0]
    if out is None:
        return
    for index, use in node.rule.uses.items():
        share = graph.shares.get((position, index))
        if share is None:
            put(weights, node.inputs[index], use.squared(out))
        else:
            found(share.name, share.to_parameter(use.squared(out)))


def pull_weight_diagonals(graph: Graph, weights: dict[int, Tensor], found: Found) -> None:
    """Pull the diagonals at weights, by their id, back to the parameters they are made from."""
    if not weights:
        return

    def visit(
        position: int, node: Node, outs: list[Tensor | None]
    ) -> Iterable[tuple[Value, Tensor]]:
        active = [value.active for value in node.inputs]
        parts = node.rule.diagonal(outs, active)
        for value, part, want in zip(node.inputs, parts, active, strict=True):
            if want and part is not None:
                yield value, part

    go_back(graph.weight_nodes, range(len(graph.weight_nodes)), weights, visit)
    for name, value in graph.trace.parameters.items():
        if id(value) in weights:
            # It may be a view of what another parameter gets.
            found(name, weights[id(value)].clone())
