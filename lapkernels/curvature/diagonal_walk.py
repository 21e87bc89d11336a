"""Going back over a recorded forward pass with nothing but a diagonal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from lapkernels.curvature.errors import Refused
from lapkernels.curvature.plan import Plan, Share, Step
from lapkernels.curvature.trace import Node
from lapkernels.curvature.walk import accumulate, naming
from lapkernels.rules import Use


def pull_diagonal(plan: Plan, m: Tensor, found: Callable[[str, Tensor], None]) -> None:
    """Carry the diagonal ``m`` [*output] back; ``found`` gets each parameter's share, a new tensor.

    An activation in front of a layer that can multiply by its squared derivative is passed with
    the layer, in one go over memory.
    """
    at: dict[int, Tensor] = {id(plan.trace.output): m}
    activations = _activations(plan)
    for position in reversed(range(len(plan.sample_nodes))):
        node = plan.sample_nodes[position]
        outs = [at.pop(id(value), None) for value in node.outputs]
        if all(out is None for out in outs):
            continue
        hand_out_diagonal(plan, position, outs, found)
        wanted = [value.active and value.samples is not None for value in node.inputs]
        if not any(wanted):
            continue
        inputs, before = node.inputs, activations.get(position)
        with naming(node):
            if before is None:
                parts = node.rule.diagonal(outs, wanted)
            else:
                parts = node.rule.diagonal_through(outs, wanted, before.rule)
                inputs = [before.inputs[0], *inputs[1:]]
        for value, part, want in zip(inputs, parts, wanted, strict=True):
            if want and part is not None:
                accumulate(at, id(value), part)


def _activations(plan: Plan) -> dict[int, Node]:
    """By the position of a layer: the activation that made its input, for this layer alone."""
    readers = {id(plan.trace.output): 1}
    makers: dict[int, Node] = {}
    found: dict[int, Node] = {}
    for node in plan.sample_nodes:
        for value in node.inputs:
            readers[id(value)] = readers.get(id(value), 0) + 1
        if node.rule.is_activation:
            makers[id(node.outputs[0])] = node
    for position, node in enumerate(plan.sample_nodes):
        if node.rule.passes_activation:
            maker = makers.get(id(node.inputs[0]))
            if maker is not None and readers[id(node.inputs[0])] == 1:
                found[position] = maker
    return found


def hand_out_diagonal(
    plan: Plan,
    position: int,
    outs: Sequence[Tensor | None],
    found: Callable[[str, Tensor], None],
) -> None:
    """Give every parameter of a node its share of a diagonal at the node's result."""
    node, out = plan.sample_nodes[position], outs[0]
    if out is None:
        return
    for index, use in node.rule.uses.items():
        share = plan.shares.get((position, index)) or _moved(plan, node, index, use)
        with naming(node):
            found(share.name, share.to_parameter(use.squared(out)))


def _moved(plan: Plan, node: Node, index: int, use: Use) -> Share:
    """The share of a parameter that is only moved on its way to the op, whoever else reads it."""
    makers = {id(value): maker for maker in plan.weight_nodes for value in maker.outputs}
    value, chain = node.inputs[index], []
    while value.parameter is None:
        maker = makers.get(id(value))
        step = None if maker is None else Step.of(maker, value)
        if maker is None or step is None:
            raise Refused(
                f"{node.where}: the approximate diagonal needs its weight to be a parameter, not "
                "an expression of parameters; methods 'exact', 'mc' and 'empirical' and "
                "predictive_variance work"
            )
        chain.append(step)
        value = maker.inputs[0]
    return Share(value.parameter, node.path, use, tuple(chain))
