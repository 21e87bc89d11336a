"""Going back over a recorded forward pass with columns.

Columns reach every op that uses a weight. Where the weight is a parameter, used once, its share is
handed out as a ``Use``, which needs no Jacobian in memory. Where a parameter is used twice, or is
turned into the weight by other ops (a norm, a product of two factors), the Jacobians of all uses
are added first, a few samples at a time, and handed out as they are: cross terms are never dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod

from torch import Tensor

from lapkernels.curvature.backward.budget import layer_below, overwritten
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.recording.graph import Graph, Section, Share
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.ops.base.chunks import row_chunks
from lapkernels.ops.serving import choice
from lapkernels.rules import EmbeddingUse, MixesSamples, Unsupported, WeightUse
from lapkernels.rules.affine import linear_matrix
from lapkernels.rules.base.shared import Scaled, is_shared
from lapkernels.rules.elementwise import FromOutput
from lapkernels.rules.shape import Movement, Permute
from lapkernels.rules.windows.window import Window, derivatives


class Collector(ABC):
    """What is made of the columns at every parameter."""

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


def pull_columns(
    graph: Graph, s: Tensor, collector: Collector, section: Section | None = None
) -> Tensor | None:
    """Carry columns ``s`` [V, *entry] back through a section of the model by its rules.

    Returns the columns at the section's exit.
    """
    section = section or Section.whole(graph)
    at: dict[int, Tensor] = {id(section.entry): s}
    scaled: dict[int, Scaled] = {}
    waiting: list[tuple[Node, int, Tensor]] = []
    for position in reversed(range(section.first, section.last)):
        node = graph.sample_nodes[position]
        wanted = node.wanted
        if position in scaled:
            _add(at, node, _pull_scaled(graph, position, scaled[position], collector), wanted)
            continue
        outs = [at.pop(id(value), None) for value in node.outputs]
        if all(out is None for out in outs):
            continue
        below = layer_below(graph, position, section)
        if below is not None and _scales(graph.sample_nodes[below], outs[0]):
            scaled[below] = _scaled(node, outs[0])
            continue
        hand_out(graph, position, outs, collector, waiting)
        if any(wanted):
            own = position in overwritten(graph) and node.outputs[0] is not section.entry
            with naming(node):
                parts = _overwritten(node, outs) if own else node.rule.columns(outs, wanted)
            _add(at, node, parts, wanted)
    pull_weights(graph, waiting, s.shape[0], collector)
    return None if section.exit is None else at.get(id(section.exit))


def _scales(layer: Node, s: Tensor | None) -> bool:
    """Whether a layer's weight is scaled for each sample instead of the columns, which are more."""
    matrix = linear_matrix(layer.rule)
    if s is None or matrix is None or not is_shared(s):
        return False
    wanted = choice("scaled")
    return 4 * len(s) >= matrix.shape[1] if wanted is None else wanted


def _scaled(node: Node, s: Tensor | None) -> Scaled:
    """Columns behind an activation, from those that are shared by all samples."""
    assert s is not None
    wanted = node.wanted
    with naming(node):
        (factor,) = (d for d in derivatives(node.rule, s.shape[1:], s, wanted) if d is not None)
    return Scaled(s[:, 0], factor)


def _pull_scaled(
    graph: Graph, position: int, columns: Scaled, collector: Collector
) -> list[Tensor | None]:
    node = graph.sample_nodes[position]
    for index in node.rule.uses:
        with naming(node):
            collector.scaled(graph.shares[position, index], columns)
    matrix = linear_matrix(node.rule)
    assert matrix is not None
    active = node.wanted
    return [columns.product(matrix) if want else None for want in active]


def _overwritten(node: Node, outs: list[Tensor | None]) -> list[Tensor | None]:
    (out,) = outs
    assert isinstance(node.rule, FromOutput) and out is not None
    return [node.rule.overwrite(out)]


def hand_out(
    graph: Graph,
    position: int,
    outs: Sequence[Tensor | None],
    collector: Collector,
    waiting: list[tuple[Node, int, Tensor]],
) -> None:
    """Give the columns at a node's results to its parameters; those with other uses are to wait."""
    node = graph.sample_nodes[position]
    out = outs[0]
    if node.rule.uses and any(other is not None for other in outs[1:]):
        raise Refused(f"{node.where} uses a parameter, and a result of it other than the first")
    if out is not None:
        for index in node.rule.uses:
            hand_out_one(graph, position, index, out, collector, waiting)


def hand_out_one(
    graph: Graph,
    position: int,
    index: int,
    out: Tensor,
    collector: Collector,
    waiting: list[tuple[Node, int, Tensor]],
) -> None:
    """Give the columns at a node's result to its operand ``index``."""
    node = graph.sample_nodes[position]
    share = graph.shares.get((position, index))
    if share is None:
        waiting.append((node, index, out))
    else:
        with naming(node):
            collector.share(share, out)


def pull_weights(
    graph: Graph, waiting: list[tuple[Node, int, Tensor]], columns: int, collector: Collector
) -> None:
    """Add up the Jacobians of all uses and carry them on to the parameters."""
    if not waiting:
        return
    # A movement hands on the memory it was given; other ops may give one tensor to two operands.
    moved = all(isinstance(n.rule, Movement) and len(n.inputs) == 1 for n in graph.weight_nodes)
    weights = {id(value): prod(value.shape) for value in (n.inputs[i] for n, i, _ in waiting)}
    for rows in row_chunks(graph.trace.count, columns * sum(weights.values())):
        # A function of its own, so that nothing of these samples is held while the next ones come.
        _pull_weights_of(graph, waiting, rows, moved, collector)


def _pull_weights_of(
    graph: Graph,
    waiting: list[tuple[Node, int, Tensor]],
    rows: slice,
    moved: bool,
    collector: Collector,
) -> None:
    """The same for some samples. ``moved`` says that the ops before the weights only move them."""
    at: dict[int, Tensor] = {}
    for node, index, s in waiting:
        use, value = node.rule.uses[index], node.inputs[index]
        with naming(node):
            if len(s) == 1 and len(range(graph.trace.count)[rows]) == 1:
                # A single G may be as large as the parameter: all uses add to one.
                use.add_jacobian(_place(graph, at, value, s), s, rows)
                continue
            g = use.jacobian(s, rows)
        # Products make a G of their own; others may hand out a view of the columns.
        own = isinstance(use, (WeightUse, EmbeddingUse))
        _add_into(at, id(value), g if own else g.clone())
    for node in reversed(graph.weight_nodes):
        outs = [at.pop(id(value), None) for value in node.outputs]
        if all(out is None for out in outs):
            continue
        lead = next(out for out in outs if out is not None).shape[:2]
        folded = [None if out is None else out.flatten(0, 1) for out in outs]
        wanted = [value.active for value in node.inputs]
        with naming(node):
            parts = node.rule.columns(folded, wanted)
        parts = [None if p is None else p.unflatten(0, lead) for p in parts]
        if moved and parts[0] is not None:
            _add_into(at, id(node.inputs[0]), parts[0])
        else:
            _add(at, node, parts, wanted)
    for name, value in graph.trace.parameters.items():
        if id(value) in at:
            collector.jacobian(name, at[id(value)], rows)


def _place(graph: Graph, at: dict[int, Tensor], value: Value, like: Tensor) -> Tensor:
    """Where G of one column and sample is to be added up, [1, 1, *value.shape].

    That of a transposed weight is a view of that of the weight.
    """
    origin, chain = graph.behind_views(value, kind=Permute)
    if id(origin) not in at:
        at[id(origin)] = like.new_zeros(1, 1, *origin.shape)
    g = at[id(origin)]
    for step in reversed(chain):
        g = step.rule.push(g[0, 0])[None, None]
    return g


def _add(at: dict[int, Tensor], node: Node, parts: list[Tensor | None], wanted: list[bool]) -> None:
    for value, part, want in zip(node.inputs, parts, wanted, strict=True):
        if want and part is not None:
            accumulate(at, id(value), part)


def _add_into(at: dict[int, Tensor], key: int, part: Tensor) -> None:
    """Add to what is known already, in the memory of ``part``, which no one else reads."""
    known = at.pop(key, None)
    at[key] = part if known is None else part.add_(known)


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
