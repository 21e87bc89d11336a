"""A recorded pass as a graph: makers and readers of values, and lone uses of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from lapkernels.curvature.recording.trace import Node, Trace, Value
from lapkernels.ops.serving import all_forced
from lapkernels.rules import Use
from lapkernels.rules.shape import Movement

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Step:
    """A movement between a parameter and a weight, which is result ``index`` of it."""

    rule: Movement
    index: int
    results: int

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

    def jacobian(self, s: Tensor, rows: slice) -> Tensor:
        """G [V, n, P] of the parameter for the samples in ``rows``, from columns at the use."""
        g = self.use.jacobian(s, rows)
        flat = g.flatten(0, 1)
        for step in self.chain:
            flat = step.pull(flat)
        return flat.reshape(*g.shape[:2], -1)


@dataclass
class Graph:
    """A recorded pass. ``weight_nodes`` are of parameters alone, ``sample_nodes`` of samples too.

    ``makers`` and ``readers`` are keyed by the id of a value; None among the readers is the caller
    of the model. ``shares`` are keyed by the position among the sample nodes and by the operand,
    and so are ``derived``, the shares of all parameters from which ops make that operand.
    """

    trace: Trace
    shares: dict[tuple[int, int], Share]
    weight_nodes: list[Node]
    sample_nodes: list[Node]
    makers: dict[int, Node]
    readers: dict[int, list[Node | None]]
    # The position of a sample node, by its id.
    positions: dict[int, int]
    derived: dict[tuple[int, int], tuple[Share, ...]] = field(default_factory=dict)
    # Cached functions of the nodes, also for replayed passes.
    memo: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace) -> Graph:
        """Index makers and readers, and find lone uses."""
        weight_nodes: list[Node] = []
        sample_nodes: list[Node] = []
        makers: dict[int, Node] = {}
        readers: dict[int, list[Node | None]] = {id(trace.output): [None]}
        for node in trace.nodes:
            varies = any(value.samples is not None for value in node.outputs)
            (sample_nodes if varies else weight_nodes).append(node)
            makers.update((id(value), node) for value in node.outputs)
            for value in node.inputs:
                readers.setdefault(id(value), []).append(node)
        positions = {id(node): position for position, node in enumerate(sample_nodes)}
        graph = cls(trace, {}, weight_nodes, sample_nodes, makers, readers, positions)
        for position, node in enumerate(sample_nodes):
            for index, use in node.rule.uses.items():
                value, chain = graph.behind_views(node.inputs[index], alone=True)
                if value.parameter is not None and graph.read_once(value):
                    share = Share(value.parameter, node.path, use, chain)
                    graph.shares[position, index] = share
                elif value.parameter is None:
                    shares = graph._behind(node.inputs[index], node.path, use)
                    if shares is not None:
                        graph.derived[position, index] = shares
        return graph

    def _behind(self, value: Value, path: str, use: Use) -> tuple[Share, ...] | None:
        """Shares of the parameters behind a value, if each has no other way to an op with samples.

        None if some do, or if a rule does not say how its operands are used.
        """
        found: list[Share] = []
        waiting: list[tuple[Value, Use]] = [(value, use)]
        while waiting:
            value, use = waiting.pop()
            if not self.read_once(value):
                return None
            if value.parameter is not None:
                found.append(Share(value.parameter, path, use))
                continue
            maker = self.makers.get(id(value))
            if maker is None or maker.outputs[0] is not value:
                return None
            uses = maker.rule.uses_behind(use)
            if uses is None:
                return None
            operands = [k for k, operand in enumerate(maker.inputs) if operand.active]
            if any(k not in uses for k in operands):
                return None
            waiting += [(maker.inputs[k], uses[k]) for k in operands]
        return tuple(found)

    def is_alone(self, position: int, index: int) -> bool:
        """Whether a weight goes to its parameters without regard to other uses of them."""
        return (position, index) in self.shares or (position, index) in self.derived

    def read_once(self, value: Value) -> bool:
        """Whether one op alone reads a value, or only the caller."""
        return len(self.readers.get(id(value), ())) == 1

    def behind_views(
        self,
        value: Value,
        *,
        alone: bool = False,
        one_to_one: bool = True,
        kind: type[Movement] = Movement,
    ) -> tuple[Value, tuple[Step, ...]]:
        """The value that this one is a view of, and the movements in between.

        These are of a ``kind``, and ``alone`` go only through values that are read once.
        """
        chain: list[Step] = []
        while value.parameter is None and (not alone or self.read_once(value)):
            node = self.makers.get(id(value))
            if node is None or not isinstance(node.rule, kind) or len(node.inputs) != 1:
                break
            if one_to_one and not node.rule.one_to_one:
                break
            chain.append(Step(node.rule, node.outputs.index(value), len(node.outputs)))
            value = node.inputs[0]
        return value, tuple(chain)

    def made_for_one(self, value: Value) -> int | None:
        """The position of the sample node that makes a value which one op alone reads."""
        maker = self.makers.get(id(value))
        return self.positions.get(id(maker)) if self.read_once(value) else None

    @property
    def explicit(self) -> list[str]:
        """Parameters whose Jacobians are added in memory."""
        alone = {share.name for share in self.shares.values()}
        alone |= {share.name for shares in self.derived.values() for share in shares}
        return [name for name in self.trace.parameters if name not in alone]


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
    def whole(cls, graph: Graph) -> Section:
        """From the output to the parameters."""
        return cls(0, len(graph.sample_nodes), graph.trace.output)

    def passed(self, graph: Graph) -> Iterator[tuple[int, Node]]:
        """The nodes that columns come to and do not stay at, from the last one on."""
        reached = {id(self.entry)}
        for position in reversed(range(self.first, self.last)):
            node = graph.sample_nodes[position]
            if any(id(value) in reached for value in node.outputs):
                yield position, node
                reached.update(id(one) for one in node.wanted_inputs if one not in self.ends)


def once_per_graph(find: Callable[Concatenate[Graph, P], R]) -> Callable[Concatenate[Graph, P], R]:
    """Cache a function of a graph's nodes and numbers, for all passes that replay it."""

    @wraps(find)
    def look_up(graph: Graph, /, *args: P.args, **options: P.kwargs) -> R:
        key = (find, all_forced(), args, *options.items())
        if key not in graph.memo:
            graph.memo[key] = find(graph, *args, **options)
        return graph.memo[key]

    return look_up
