"""What going back over a recorded pass does at each node, found once: which uses stand alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from lapkernels.curvature.recording.trace import Node, Trace, Value
from lapkernels.rules import Use
from lapkernels.rules.affine import linear_matrix
from lapkernels.rules.choices import all_forced
from lapkernels.rules.elementwise import Elementwise, FromOutput
from lapkernels.rules.shape import Movement

P = ParamSpec("P")
R = TypeVar("R")


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
            value = step.rule.push(value)
        return value


@dataclass
class Plan:
    """What the walk does at each node, found once for a recorded pass."""

    trace: Trace
    shares: dict[tuple[int, int], Share]
    weight_nodes: list[Node]
    sample_nodes: list[Node]
    # By the id of its result, the node that makes a value of parameters alone.
    weight_makers: dict[int, Node] = field(default_factory=dict)
    # Nodes that may write over the columns at their result: one reader alone made them.
    overwrites: frozenset[int] = frozenset()
    # Activations of a linear layer's result that no one else reads, with the layer's node.
    scalings: dict[int, int] = field(default_factory=dict)
    # What others found out about the nodes, for passes that repeat this one too.
    memo: dict[Any, Any] = field(default_factory=dict)

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
        scalings = _scalings(sample_nodes, readers)
        overwrites = _overwrites(sample_nodes)
        of_weights = {id(value): node for node in weight_nodes for value in node.outputs}
        return cls(trace, shares, weight_nodes, sample_nodes, of_weights, overwrites, scalings)

    def layer_below(self, position: int, section: Section) -> int | None:
        """The linear layer below an activation, if both are one step for shared columns."""
        below = self.scalings.get(position)
        if below is None or below < section.first:
            return None
        node = self.sample_nodes[below]
        alone = all((below, index) in self.shares for index in node.rule.uses)
        return below if alone and node.outputs[0] is not section.exit else None

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


def _scalings(nodes: list[Node], readers: dict[int, int]) -> dict[int, int]:
    layers: dict[int, int] = {}
    found: dict[int, int] = {}
    for position, node in enumerate(nodes):
        if linear_matrix(node.rule) is not None:
            layers[id(node.outputs[0])] = position
        elif isinstance(node.rule, (Elementwise, FromOutput)) and not node.rule.uses:
            operands = [one for one in node.inputs if one.active and one.samples is not None]
            value = operands[0]
            same = len(operands) == 1 and value.shape == node.outputs[0].shape
            if same and readers[id(value)] == 1 and id(value) in layers:
                found[position] = layers[id(value)]
    return found


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
        if not step.rule.one_to_one:
            return None
        chain.append(step)
        value = node.inputs[0]


@dataclass(frozen=True)
class Section:
    """Sample nodes ``first`` to ``last`` - 1, from the value ``entry`` back to the value ``exit``.

    All columns pass both values; a section that ends at the parameters has no exit. Columns that
    come to one of ``ends`` stay there.
    """

    first: int
    last: int
    entry: Value
    exit: Value | None = None
    ends: tuple[Value, ...] = ()

    @classmethod
    def whole(cls, plan: Plan) -> Section:
        """From the output to the parameters."""
        return cls(0, len(plan.sample_nodes), plan.trace.output)


def once_per_plan(find: Callable[Concatenate[Plan, P], R]) -> Callable[Concatenate[Plan, P], R]:
    """A function of a plan's nodes and of numbers, found out once for all passes that repeat it."""

    @wraps(find)
    def look_up(plan: Plan, /, *args: P.args, **options: P.kwargs) -> R:
        key = (find, all_forced(), args, *options.items())
        if key not in plan.memo:
            plan.memo[key] = find(plan, *args, **options)
        return plan.memo[key]

    return look_up
