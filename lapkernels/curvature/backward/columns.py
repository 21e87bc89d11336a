"""The backward pass over a recorded graph: the one loop over its nodes, and columns.

Columns reach every op that uses a weight. A parameter that is a weight once gets its share as a
``Use``, which needs no Jacobian in memory. If a parameter is used twice, or other ops make the
weight from it (a norm, a product of two factors), the Jacobians of all uses are added first, a few
samples at a time, and handed out themselves: cross terms are never dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

from torch import Tensor

from lapkernels.curvature.errors import Refused
from lapkernels.curvature.recording.graph import Graph, Section, Share, once_per_graph
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.ops.base.chunks import row_chunks
from lapkernels.rules import EmbeddingUse, MixesSamples, Unsupported, WeightUse
from lapkernels.rules.affine import linear_matrix
from lapkernels.rules.base.shared import Scaled, is_shared
from lapkernels.rules.elementwise import FromOutput
from lapkernels.rules.shape import Movement, Permute
from lapkernels.rules.windows.below import derivatives
from lapkernels.rules.windows.window import Window

T = TypeVar("T")
# Columns at uses of parameters that have other uses: the node, its operand, and the columns.
Waiting = list[tuple[Node, int, Tensor]]


class Collector(ABC):
    """Receives the columns at every parameter."""

    @abstractmethod
    def share(self, share: Share, s: Tensor) -> None:
        """Columns [V, *out] at the only use of a parameter."""

    @abstractmethod
    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        """The Jacobian [V, n, *shape] of a parameter for the samples in ``rows``."""

    def scaled(self, share: Share, columns: Scaled) -> None:
        """Columns that are the same for all samples up to a factor."""
        self.share(share, columns.columns())

    def window(self, share: Share, window: Window, size: Sequence[int]) -> None:
        """Columns as windows of images of this size, at the only use of a parameter."""
        self.share(share, window.image(size))

    def finish(self) -> None:
        """The columns since the last call have reached every parameter, if the pass keeps them."""
        raise NotImplementedError


def accumulate(known: Any, part: Any) -> Any:
    """The sum of what two readers of a value contribute."""
    return known + part


def put(at: dict[int, T], value: Value, part: T, add: Callable[[T, T], T] = accumulate) -> None:
    """Add to what a value has already."""
    key = id(value)
    at[key] = add(at.pop(key), part) if key in at else part


def go_back(
    nodes: Sequence[Node],
    span: range,
    at: dict[int, T],
    visit: Callable[[int, Node, list[T | None]], Iterable[tuple[Value, T]]],
    *,
    ends: Sequence[Value] = (),
    ended: Callable[[Value, Any], None] | None = None,
    add: Callable[[T, T], T] = accumulate,
) -> None:
    """Pull what is ``at`` values, by their id, back over the nodes in ``span``.

    ``visit`` gets what is at a node's results and returns what goes to values before it.
    ``ended`` gets what reaches one of ``ends``, where it stays.
    """
    for position in reversed(span):
        node = nodes[position]
        outs = [at.pop(id(value), None) for value in node.outputs]
        for index, value in enumerate(node.outputs if ends else ()):
            out = outs[index]
            if out is not None and value in ends:
                assert ended is not None
                ended(value, out)
                outs[index] = None
        if all(out is None for out in outs):
            continue
        with naming(node):
            for value, part in visit(position, node, outs):
                put(at, value, part, add)


def pull_columns(
    graph: Graph,
    s: Tensor,
    collector: Collector,
    section: Section | None = None,
    scaled: Mapping[int, int] | None = None,
    ended: Callable[[Value, Tensor], None] | None = None,
) -> Tensor | None:
    """Pull columns ``s`` [V, *entry] back through a section of the graph by its rules.

    Where ``scaled`` has an activation, and columns are the same for all samples, the weight of the
    layer below is scaled for each sample instead of the columns. Returns the columns at the
    section's exit.
    """
    section = section or Section.whole(graph)
    at: dict[int, Tensor | Scaled] = {id(section.entry): s}
    waiting: Waiting = []

    def visit(
        position: int, node: Node, outs: list[Any]
    ) -> Iterable[tuple[Value, Tensor | Scaled]]:
        out = outs[0]
        if isinstance(out, Scaled):
            return _below_scaled(graph, position, node, out, collector)
        if scaled and position in scaled and is_shared(out):
            return [_scaled(node, out)]
        hand_out(graph, position, outs, collector, waiting)
        if position in overwritten(graph) and node.outputs[0] is not section.entry:
            assert isinstance(node.rule, FromOutput)
            return arriving(node, [node.rule.overwrite(out)])
        return arriving(node, node.rule.columns(outs, node.wanted)) if any(node.wanted) else ()

    span = range(section.first, section.last)
    go_back(graph.sample_nodes, span, at, visit, ends=section.ends, ended=ended)
    pull_weights(graph, waiting, s.shape[0], collector)
    found = None if section.exit is None else at.get(id(section.exit))
    assert not isinstance(found, Scaled)
    return found


def arriving(node: Node, parts: Sequence[T | None]) -> list[tuple[Value, T]]:
    """The operands that need columns, with their columns."""
    return [
        (value, part)
        for value, part, want in zip(node.inputs, parts, node.wanted, strict=True)
        if want and part is not None
    ]


@once_per_graph
def overwritten(graph: Graph) -> frozenset[int]:
    """Activations that may overwrite the columns at their result, which has one reader."""
    return frozenset(
        position
        for position, node in enumerate(graph.sample_nodes)
        if isinstance(node.rule, FromOutput) and any(node.wanted)
        for reader in graph.readers[id(node.outputs[0])]
        if graph.read_once(node.outputs[0]) and reader is not None and reader.rule.makes_new
    )


def _scaled(node: Node, s: Tensor) -> tuple[Value, Scaled]:
    """Columns at an activation's operand, from shared ones at its result."""
    found = derivatives(node.rule, s.shape[1:], s, node.wanted)
    ((value, factor),) = arriving(node, found)
    return value, Scaled(s[:, 0], factor)


def _below_scaled(
    graph: Graph, position: int, node: Node, columns: Scaled, collector: Collector
) -> Iterable[tuple[Value, Tensor]]:
    """Columns at the input of a linear layer whose weight is scaled for each sample."""
    for index in node.rule.uses:
        collector.scaled(graph.shares[position, index], columns)
    matrix = linear_matrix(node.rule)
    assert matrix is not None
    return arriving(node, [columns.product(matrix) if want else None for want in node.wanted])


def hand_out(
    graph: Graph,
    position: int,
    outs: Sequence[Tensor | None],
    collector: Collector,
    waiting: Waiting,
) -> None:
    """Hand the columns at a node's results to its parameters; those with other uses wait."""
    node, out = graph.sample_nodes[position], outs[0]
    if node.rule.uses and any(other is not None for other in outs[1:]):
        raise Refused(f"{node.where} uses a parameter, and a result of it other than the first")
    if out is not None:
        for index in node.rule.uses:
            hand_out_one(graph, position, index, out, collector, waiting)


def hand_out_one(
    graph: Graph, position: int, index: int, out: Tensor, collector: Collector, waiting: Waiting
) -> None:
    """Hand the columns at a node's result to its operand ``index``."""
    share = graph.shares.get((position, index))
    if share is not None:
        collector.share(share, out)
    elif (position, index) in graph.derived:
        for share in graph.derived[position, index]:
            collector.share(share, out)
    else:
        waiting.append((graph.sample_nodes[position], index, out))


def pull_weights(graph: Graph, waiting: Waiting, columns: int, collector: Collector) -> None:
    """Add the Jacobians of all uses and pull them back to the parameters."""
    if not waiting:
        return
    weights = {id(value): prod(value.shape) for value in (n.inputs[i] for n, i, _ in waiting)}
    for rows in row_chunks(graph.trace.count, columns * sum(weights.values())):
        # A separate function, so that the tensors of these samples are freed before the next ones.
        _pull_weights_of(graph, waiting, rows, collector)


def _pull_weights_of(graph: Graph, waiting: Waiting, rows: slice, collector: Collector) -> None:
    """The same for some samples."""
    at: dict[int, Tensor] = {}
    for node, index, s in waiting:
        use, value = node.rule.uses[index], node.inputs[index]
        with naming(node):
            if len(s) == 1 and len(range(graph.trace.count)[rows]) == 1:
                # One G may be as large as the parameter: all uses are added into one.
                use.add_jacobian(_sum_at(graph, at, value, s), s, rows)
                continue
            g = use.jacobian(s, rows)
        # Products make a new G; others may return a view of the columns.
        own = isinstance(use, (WeightUse, EmbeddingUse))
        put(at, value, g if own else g.clone(), _added_in_place)

    def visit(
        position: int, node: Node, outs: list[Tensor | None]
    ) -> Iterable[tuple[Value, Tensor]]:
        lead = next(out for out in outs if out is not None).shape[:2]
        folded = [None if out is None else out.flatten(0, 1) for out in outs]
        active = [value.active for value in node.inputs]
        for value, part, want in zip(
            node.inputs, node.rule.columns(folded, active), active, strict=True
        ):
            if want and part is not None:
                yield value, part.unflatten(0, lead)

    # A movement returns a view of its argument; other ops may return one tensor for two operands.
    nodes = graph.weight_nodes
    moved = all(isinstance(node.rule, Movement) and len(node.inputs) == 1 for node in nodes)
    add = _added_in_place if moved else accumulate
    go_back(nodes, range(len(nodes)), at, visit, add=add)
    for name, value in graph.trace.parameters.items():
        if id(value) in at:
            collector.jacobian(name, at[id(value)], rows)


def _added_in_place(known: Tensor, part: Tensor) -> Tensor:
    """The sum, written into ``part``, which nothing else reads."""
    return part.add_(known)


def _sum_at(graph: Graph, at: dict[int, Tensor], value: Value, like: Tensor) -> Tensor:
    """A buffer for the sum of G of one column and sample, [1, 1, *value.shape].

    For a transposed weight it is a view of the weight's buffer.
    """
    origin, chain = graph.behind_views(value, kind=Permute)
    if id(origin) not in at:
        at[id(origin)] = like.new_zeros(1, 1, *origin.shape)
    g = at[id(origin)]
    for step in reversed(chain):
        g = step.rule.push(g[0, 0])[None, None]
    return g


class naming:
    """Prefix an error's message with the op's name and module."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (Unsupported, MixesSamples)):
            raise Refused(f"{self.node.where} {error}") from error
