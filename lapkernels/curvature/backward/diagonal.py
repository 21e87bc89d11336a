"""Going over a recorded pass with a diagonal: back with curvature, or forward with variances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lapkernels.curvature.backward.chains import Found, chains
from lapkernels.curvature.backward.columns import accumulate, naming
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.recording.graph import Graph, Share, once_per_graph
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.rules import Use


def pull_diagonal(graph: Graph, m: Tensor, found: Found) -> None:
    """Carry the diagonal ``m`` [*output] back; ``found`` gets each parameter's share, a new tensor.

    A chain of layers is passed in one call. Elsewhere an activation in front of a layer that can
    multiply by its squared derivative is passed with the layer, in one go over memory.
    """
    at: dict[int, Tensor] = {id(graph.trace.output): m}
    activations = _activations(graph)
    linked = chains(graph)
    for position in reversed(range(len(graph.sample_nodes))):
        node = graph.sample_nodes[position]
        outs = [at.pop(id(value), None) for value in node.outputs]
        if all(out is None for out in outs):
            continue
        chain, out = linked.get(position), outs[0]
        if chain is not None and out is not None and chain.takes(out):
            below, _ = chain.pull(out, found)
            if below is not None:
                accumulate(at, id(chain.below), below)
            continue
        hand_out_diagonal(graph, position, outs, found)
        before = activations.get(position)
        wanted = node.wanted
        parts = _pull(node, outs, wanted, before)
        for value, part in zip(_inputs(node, before), parts, strict=True):
            if part is not None:
                accumulate(at, id(value), part)


def passes_both(graph: Graph, like: Tensor) -> bool:
    """Whether a diagonal and a gradient, of a kind ``like`` a tensor, can go back together."""
    return _chains_hold_all(graph) and all(chain.takes(like) for chain in chains(graph).values())


@once_per_graph
def _chains_hold_all(graph: Graph) -> bool:
    """Whether every parameter belongs to a chain."""
    inside = {id(link.layer) for chain in chains(graph).values() for link in chain.links}
    alone = [node for node in graph.sample_nodes if id(node) not in inside]
    return not graph.weight_nodes and not any(
        node.rule.uses or node.rule.passes_activation for node in alone
    )


def pull_both(graph: Graph, m: Tensor, g: Tensor, found: Found, gradient: Found) -> None:
    """Carry a diagonal and a gradient, both [*output], back in one go over the model.

    ``found`` and ``gradient`` get each parameter's share, a new tensor.
    """
    squares, sums = {id(graph.trace.output): m}, {id(graph.trace.output): g}

    def add(value: Value, diagonal: Tensor | None, column: Tensor | None) -> None:
        # Apart: where an operand stands twice, its diagonal comes once and its gradient twice.
        if diagonal is not None:
            accumulate(squares, id(value), diagonal)
        if column is not None:
            accumulate(sums, id(value), column)

    linked = chains(graph)
    for position in reversed(range(len(graph.sample_nodes))):
        node = graph.sample_nodes[position]
        diagonals = [squares.pop(id(value), None) for value in node.outputs]
        columns = [sums.pop(id(value), None) for value in node.outputs]
        if all(one is None for one in columns):
            continue
        chain, first = linked.get(position), diagonals[0]
        if chain is not None and first is not None:
            add(chain.below, *chain.pull(first, found, columns[0], gradient))
            continue
        wanted = node.wanted
        if not any(wanted):
            continue
        with naming(node):
            below = node.rule.diagonal(diagonals, wanted)
            gradients = node.rule.columns([c if c is None else c[None] for c in columns], wanted)
        for value, want, diagonal, column in zip(
            node.inputs, wanted, below, gradients, strict=True
        ):
            if want:
                add(value, diagonal, None if column is None else column[0])


def push_variance(graph: Graph, variance: Mapping[str, Tensor]) -> Tensor:
    """Carry the variances of parameters forward to the output: the transpose of ``pull_diagonal``.

    Every op is transposed alone, so that no graph of all ops is in memory, and a variance is
    forgotten once the last op has read it.
    """
    at: dict[int, Tensor] = {}
    activations = _activations(graph)
    passed = {id(before) for before in activations.values()}
    steps = [
        (position, _inputs(node, activations.get(position)))
        for position, node in enumerate(graph.sample_nodes)
        if id(node) not in passed
    ]
    last = {id(value): position for position, inputs in steps for value in inputs}
    last[id(graph.trace.output)] = len(graph.sample_nodes)
    for position, inputs in steps:
        known = [at.get(id(value)) for value in inputs]
        for value in inputs:
            if last[id(value)] == position:
                at.pop(id(value), None)
        results = graph.sample_nodes[position].outputs
        outputs = [value for value in results if value.active and id(value) in last]
        pushed = _push(graph, position, known, outputs, activations.get(position), variance)
        at.update(zip(map(id, outputs), pushed, strict=True))
    return at[id(graph.trace.output)]


def _push(
    graph: Graph,
    position: int,
    known: list[Tensor | None],
    outputs: list[Value],
    before: Node | None,
    variance: Mapping[str, Tensor],
) -> list[Tensor]:
    """Variances at some results of a node from those known at its operands.

    A diagonal m at the results is turned into D(m) at operands and parameters, linear in m. The
    transpose takes variances v there to the gradient of <v, D(m)> in m, the same at every m.
    """
    direct = _pushed_directly(graph, position, known, before, variance)
    if direct is not None:
        return [direct]
    node, like = graph.sample_nodes[position], graph.trace.prediction
    m = {id(one): like.new_zeros(one.shape, dtype=one.dtype).requires_grad_() for one in outputs}
    total: dict[int, Tensor] = {}

    def add(diagonals: Sequence[Tensor], variances: Sequence[Tensor]) -> None:
        found = torch.autograd.grad(diagonals, list(m.values()), variances, allow_unused=True)
        for key, one in zip(m, found, strict=True):
            if one is not None:
                accumulate(total, key, one)

    with torch.enable_grad():
        outs = [m.get(id(value)) for value in node.outputs]
        hand_out_diagonal(graph, position, outs, lambda name, d: add([d], [variance[name]]))
        parts = _pull(node, outs, [v is not None for v in known], before)
        pairs = [(d, v) for d, v in zip(parts, known, strict=True) if d is not None]
        if pairs:
            add([d for d, _ in pairs], [v for _, v in pairs if v is not None])
    return [total.get(key, one.detach()) for key, one in m.items()]


def _pushed_directly(
    graph: Graph,
    position: int,
    known: list[Tensor | None],
    before: Node | None,
    variance: Mapping[str, Tensor],
) -> Tensor | None:
    """What the rule of a node with one result makes of variances, if it has a formula for them."""
    node = graph.sample_nodes[position]
    weights: dict[int, Tensor] = {}
    for index in node.rule.uses:
        share = graph.shares.get((position, index))
        if share is None:
            return None
        weights[index] = share.to_weight(variance[share.name])
    x = {index: v for index, v in enumerate(known) if v is not None}
    with naming(node):
        return node.rule.variance(x, weights, None if before is None else before.rule)


def _inputs(node: Node, before: Node | None) -> list[Value]:
    """What a node reads, behind the activation that is passed with it."""
    return node.inputs if before is None else [before.inputs[0], *node.inputs[1:]]


def _pull(
    node: Node, outs: Sequence[Tensor | None], wanted: Sequence[bool], before: Node | None
) -> list[Tensor | None]:
    """Diagonals at what a node reads, None where they are not wanted."""
    if not any(wanted):
        return [None] * len(wanted)
    with naming(node):
        if before is None:
            parts = node.rule.diagonal(outs, wanted)
        else:
            parts = node.rule.diagonal_through(outs, wanted, before.rule)
    return [part if want else None for part, want in zip(parts, wanted, strict=True)]


@once_per_graph
def _activations(graph: Graph) -> dict[int, Node]:
    """By the position of a layer: the activation that made its input, for this layer alone."""
    found: dict[int, Node] = {}
    for position, node in enumerate(graph.sample_nodes):
        maker = graph.made_for_one(node.inputs[0]) if node.rule.passes_activation else None
        if maker is not None and graph.sample_nodes[maker].rule.is_activation:
            found[position] = graph.sample_nodes[maker]
    return found


def hand_out_diagonal(
    graph: Graph,
    position: int,
    outs: Sequence[Tensor | None],
    found: Found,
) -> None:
    """Give every parameter of a node its share of a diagonal at the node's result."""
    node, out = graph.sample_nodes[position], outs[0]
    if out is None:
        return
    for index, use in node.rule.uses.items():
        share = graph.shares.get((position, index)) or _moved(graph, node, index, use)
        with naming(node):
            found(share.name, share.to_parameter(use.squared(out)))


def _moved(graph: Graph, node: Node, index: int, use: Use) -> Share:
    """The share of a parameter that is only moved on its way to the op, whoever else reads it."""
    value, chain = graph.behind_views(node.inputs[index], one_to_one=False)
    if value.parameter is None:
        raise Refused(
            f"{node.where}: the approximate diagonal needs its weight to be a parameter, not an "
            "expression of parameters; methods 'exact', 'mc' and 'empirical' and "
            "predictive_variance work"
        )
    return Share(value.parameter, node.path, use, chain)
