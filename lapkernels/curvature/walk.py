"""Going back over a recorded forward pass, with columns or with a diagonal.

Columns reach every op that uses a weight. Where the weight is a parameter, used once, its share is
handed out as a ``Use``, which needs no Jacobian in memory. Where a parameter is used twice, or is
turned into the weight by other ops (a norm, a product of two factors), the Jacobians of all uses
are added first, a few samples at a time, and handed out as they are: cross terms are never dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lapkernels.curvature.errors import Refused
from lapkernels.curvature.trace import Node, Trace, Value
from lapkernels.rules import MixesSamples, Unsupported, Use, row_chunks
from lapkernels.rules.elementwise import FromOutput
from lapkernels.rules.shape import Movement
from lapkernels.rules.windows import Window


@dataclass(frozen=True)
class Step:
    """A movement on the way from a parameter to a weight, which is result ``index`` of it."""

    rule: Movement
    index: int
    results: int

    @classmethod
    def of(cls, maker: Node, value: Value) -> Step | None:
        """The step that made a value, if it is a movement of one tensor."""
        if not isinstance(maker.rule, Movement) or len(maker.inputs) != 1:
            return None
        index = next(i for i, out in enumerate(maker.outputs) if out is value)
        return cls(maker.rule, index, len(maker.outputs))

    def pull(self, s: Tensor) -> Tensor:
        """Columns [V, *operand] from columns [V, *result]."""
        outs: list[Tensor | None] = [None] * self.results
        outs[self.index] = s
        (pulled,) = self.rule.columns(outs, [True])
        assert pulled is not None
        return pulled


@dataclass(frozen=True)
class Share:
    """A parameter's only use. Its weight may be a transposed or reshaped view of the parameter."""

    name: str
    path: str
    use: Use
    chain: tuple[Step, ...] = ()

    def to_parameter(self, value: Tensor) -> Tensor:
        """A tensor of the weight's layout in the parameter's, zero where the weight is a part."""
        for step in self.chain:
            value = step.pull(value.unsqueeze(0))[0]
        return value

    def to_weight(self, value: Tensor) -> Tensor:
        """A tensor of the parameter's layout in the weight's."""
        for step in reversed(self.chain):
            pushed = step.rule.push(value)
            assert pushed is not None
            value = pushed
        return value


class Collector(ABC):
    """What is made of the columns at every parameter."""

    @abstractmethod
    def share(self, share: Share, s: Tensor) -> None:
        """Columns [V, *out] at the only use of a parameter."""

    @abstractmethod
    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        """The Jacobian [V, n, *shape] of a parameter for the samples in ``rows``."""

    def window(self, share: Share, window: Window, size: Sequence[int]) -> None:
        """Columns as windows of images of this size, at the only use of a parameter."""
        self.share(share, window.image(size))


@dataclass
class Plan:
    """What the walk does at each node, found once for a recorded pass."""

    trace: Trace
    shares: dict[tuple[int, int], Share]
    weight_nodes: list[Node]
    sample_nodes: list[Node]
    # Nodes that may write over the columns at their result: one reader alone made them.
    overwrites: frozenset[int] = frozenset()

    @classmethod
    def of(cls, trace: Trace) -> Plan:
        """Find which uses stand alone."""
        makers: dict[int, Node] = {}
        readers: dict[int, int] = {}
        weight_nodes, sample_nodes = [], []
        for node in trace.nodes:
            varies = any(value.samples is not None for value in node.outputs)
            (sample_nodes if varies else weight_nodes).append(node)
            for value in node.outputs:
                makers[id(value)] = node
            for value in node.inputs:
                readers[id(value)] = readers.get(id(value), 0) + 1
        shares: dict[tuple[int, int], Share] = {}
        for position, node in enumerate(sample_nodes):
            for index, use in node.rule.uses.items():
                origin = _origin(node.inputs[index], makers, readers)
                if origin is not None:
                    name, chain = origin
                    shares[position, index] = Share(name, node.path, use, chain)
        return cls(trace, shares, weight_nodes, sample_nodes, _overwrites(sample_nodes))

    @property
    def explicit(self) -> list[str]:
        """Parameters whose Jacobians are added up in memory."""
        alone = {share.name for share in self.shares.values()}
        return [name for name in self.trace.parameters if name not in alone]


def _overwrites(nodes: list[Node]) -> frozenset[int]:
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for value in node.inputs:
            readers.setdefault(id(value), []).append(node)
    return frozenset(
        position
        for position, node in enumerate(nodes)
        if isinstance(node.rule, FromOutput)
        and [one.rule.makes_new for one in readers.get(id(node.outputs[0]), [])] == [True]
    )


def _origin(
    value: Value, makers: dict[int, Node], readers: dict[int, int]
) -> tuple[str, tuple[Step, ...]] | None:
    chain: list[Step] = []
    while True:
        if readers[id(value)] != 1:
            return None
        if value.parameter is not None:
            return value.parameter, tuple(chain)
        node = makers.get(id(value))
        step = None if node is None else Step.of(node, value)
        if node is None or step is None:
            return None
        if step.rule.push(torch.empty(node.inputs[0].shape, device="meta")) is None:
            return None
        chain.append(step)
        value = node.inputs[0]


@dataclass(frozen=True)
class Section:
    """Sample nodes ``first`` to ``last`` - 1, from the value ``entry`` back to the value ``exit``.

    All columns pass both values; a section that ends at the parameters has no exit.
    """

    first: int
    last: int
    entry: Value
    exit: Value | None = None

    @classmethod
    def whole(cls, plan: Plan) -> Section:
        """From the output to the parameters."""
        return cls(0, len(plan.sample_nodes), plan.trace.output)


def pull_columns(
    plan: Plan, s: Tensor, collector: Collector, section: Section | None = None
) -> Tensor | None:
    """Carry columns ``s`` [V, *entry] back through a section of the model by its rules.

    Returns the columns at the section's exit.
    """
    section = section or Section.whole(plan)
    at: dict[int, Tensor] = {id(section.entry): s}
    waiting: list[tuple[Node, int, Tensor]] = []
    for position in reversed(range(section.first, section.last)):
        node = plan.sample_nodes[position]
        outs = [at.pop(id(value), None) for value in node.outputs]
        if all(out is None for out in outs):
            continue
        hand_out(plan, position, outs, collector, waiting)
        wanted = [value.active and value.samples is not None for value in node.inputs]
        if any(wanted):
            own = position in plan.overwrites and node.outputs[0] is not section.entry
            with naming(node):
                parts = _overwritten(node, outs) if own else node.rule.columns(outs, wanted)
            _add(at, node, parts, wanted)
    pull_weights(plan, waiting, s.shape[0], collector)
    return None if section.exit is None else at.get(id(section.exit))


def _overwritten(node: Node, outs: list[Tensor | None]) -> list[Tensor | None]:
    (out,) = outs
    assert isinstance(node.rule, FromOutput) and out is not None
    return [node.rule.overwrite(out)]


def autograd_columns(plan: Plan, s: Tensor, collector: Collector) -> None:
    """Carry columns back by autograd, one at a time, to the ops that use a weight.

    In a batch of one the gradient of a parameter is its Jacobian, however it is used.
    """
    trace = plan.trace
    assert trace.graph is not None
    alone = trace.count == 1
    found = [] if alone and trace.hidden else _edges(plan, only_shares=alone)
    named = {plan.shares[position, index].name for position, index, _ in found} if alone else set()
    direct = [name for name in trace.parameters if alone and name not in named]
    targets = [edge for _, _, edge in found]
    targets += [get_gradient_edge(trace.leaves[name]) for name in direct]
    if not targets:
        return
    for column in s:
        grads = torch.autograd.grad(
            trace.graph, targets, column, retain_graph=True, allow_unused=True
        )
        waiting: list[tuple[Node, int, Tensor]] = []
        for (position, index, _), grad in zip(found, grads, strict=False):
            if grad is not None:
                _hand_out_one(plan, position, index, grad.unsqueeze(0), collector, waiting)
        for name, grad in zip(direct, grads[len(found) :], strict=True):
            if grad is not None:
                collector.jacobian(name, grad[None, None], slice(0, 1))
        pull_weights(plan, waiting, 1, collector)


def _edges(plan: Plan, only_shares: bool) -> list[tuple[int, int, GradientEdge]]:
    """Node, operand and place in autograd's graph of every use of a weight."""
    return [
        (position, index, node.edges[0])
        for position, node in enumerate(plan.sample_nodes)
        for index in node.rule.uses
        if node.edges and node.edges[0] is not None
        if not only_shares or (position, index) in plan.shares
    ]


def pull_diagonal(plan: Plan, m: Tensor, found: Callable[[str, Tensor], None]) -> None:
    """Carry only the diagonal ``m`` [*output] back; ``found`` gets each parameter's share."""
    at: dict[int, Tensor] = {id(plan.trace.output): m}
    for position in reversed(range(len(plan.sample_nodes))):
        node = plan.sample_nodes[position]
        outs = [at.pop(id(value), None) for value in node.outputs]
        if all(out is None for out in outs):
            continue
        hand_out_diagonal(plan, position, outs, found)
        wanted = [value.active and value.samples is not None for value in node.inputs]
        if any(wanted):
            with naming(node):
                parts = node.rule.diagonal(outs, wanted)
            _add(at, node, parts, wanted)


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
                "an expression of parameters; methods 'exact', 'mc' and 'empirical' work"
            )
        chain.append(step)
        value = maker.inputs[0]
    return Share(value.parameter, node.path, use, tuple(chain))


def hand_out(
    plan: Plan,
    position: int,
    outs: Sequence[Tensor | None],
    collector: Collector,
    waiting: list[tuple[Node, int, Tensor]],
) -> None:
    """Give the columns at a node's results to its parameters; those with other uses are to wait."""
    node = plan.sample_nodes[position]
    out = outs[0]
    if node.rule.uses and any(other is not None for other in outs[1:]):
        raise Refused(f"{node.where} uses a parameter, and a result of it other than the first")
    if out is not None:
        for index in node.rule.uses:
            _hand_out_one(plan, position, index, out, collector, waiting)


def _hand_out_one(
    plan: Plan,
    position: int,
    index: int,
    out: Tensor,
    collector: Collector,
    waiting: list[tuple[Node, int, Tensor]],
) -> None:
    node = plan.sample_nodes[position]
    share = plan.shares.get((position, index))
    if share is None:
        waiting.append((node, index, out))
    else:
        with naming(node):
            collector.share(share, out)


def pull_weights(
    plan: Plan, waiting: list[tuple[Node, int, Tensor]], columns: int, collector: Collector
) -> None:
    """Add up the Jacobians of all uses and carry them on to the parameters."""
    if not waiting:
        return
    largest = max(prod(node.inputs[index].shape) for node, index, _ in waiting)
    for rows in row_chunks(plan.trace.count, columns * largest):
        at: dict[int, Tensor] = {}
        for node, index, s in waiting:
            with naming(node):
                g = node.rule.uses[index].jacobian(s, rows)
            accumulate(at, id(node.inputs[index]), g)
        for node in reversed(plan.weight_nodes):
            outs = [at.pop(id(value), None) for value in node.outputs]
            if all(out is None for out in outs):
                continue
            lead = next(out for out in outs if out is not None).shape[:2]
            folded = [None if out is None else out.flatten(0, 1) for out in outs]
            wanted = [value.active for value in node.inputs]
            with naming(node):
                parts = node.rule.columns(folded, wanted)
            parts = [None if p is None else p.unflatten(0, lead) for p in parts]
            _add(at, node, parts, wanted)
        for name, value in plan.trace.parameters.items():
            if id(value) in at:
                collector.jacobian(name, at[id(value)], rows)


def _add(at: dict[int, Tensor], node: Node, parts: list[Tensor | None], wanted: list[bool]) -> None:
    for value, part, want in zip(node.inputs, parts, wanted, strict=True):
        if want and part is not None:
            accumulate(at, id(value), part)


def accumulate(at: dict[int, Tensor], key: int, part: Tensor) -> None:
    """Add to what is known already."""
    known = at.get(key)
    at[key] = part if known is None else known + part


class naming:
    """Put the op's name and module before the message of an error."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (Unsupported, MixesSamples)):
            raise Refused(f"{self.node.where} {error}") from error


def widest(plan: Plan, section: Section | None = None) -> int:
    """Most numbers that one column has alive at a time on its way back."""
    section = section or Section.whole(plan)
    at = {id(section.entry): prod(section.entry.shape)}
    most = sum(at.values())
    for position in reversed(range(section.first, section.last)):
        node = plan.sample_nodes[position]
        if position in plan.overwrites:
            at.pop(id(node.outputs[0]), None)
        for value in node.inputs:
            if value.active and value.samples is not None:
                at[id(value)] = prod(value.shape)
        most = max(most, sum(at.values()))
        for value in node.outputs:
            at.pop(id(value), None)
    return most


def column_chunks(
    plan: Plan, count: int, budget: int | None, size: int, section: Section | None = None
) -> Iterator[tuple[int, int]]:
    """Ranges of columns such that their way back stays within the budget in bytes."""
    allowed = default_budget(plan, size) if budget is None else budget
    step = max(1, allowed // max(1, widest(plan, section) * size))
    for first in range(0, count, step):
        yield first, min(first + step, count)


def default_budget(plan: Plan, size: int) -> int:
    """Half as much as the activations of the forward pass, and at least 16 MiB.

    The other half is for what ops need beside the columns.
    """
    return max(plan.trace.entries * size // 2, 1 << 24)
