"""How many columns may be on their way back at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from lapkernels.curvature.recording.graph import Graph, Section, once_per_graph
from lapkernels.curvature.recording.trace import Value
from lapkernels.rules.affine import linear_matrix
from lapkernels.rules.elementwise import Elementwise, FromOutput

# Shared columns are many and small: in chunks of so many bytes they stay in cache.
CACHE = 3 << 21


@once_per_graph
def widest(graph: Graph, section: Section | None = None, shared: int = 0) -> int:
    """Most numbers that one column has alive at a time on its way back.

    Where weights have several uses the columns at them wait for each other, and then have one
    sample's Jacobian at least, of the uses so far and of the next one. ``shared`` is the number of
    columns at a time if they are the same for all samples.
    """
    section = section or Section.whole(graph)
    once = {id(section.entry)} if shared else set()
    at = {id(section.entry): _entries(section.entry, once)}
    most = sum(at.values())
    jacobians: dict[int, int] = {}
    for position in reversed(range(section.first, section.last)):
        node = graph.sample_nodes[position]
        if position in overwritten(graph):
            at.pop(id(node.outputs[0]), None)
        stays = id(node.outputs[0]) in once and linear_matrix(node.rule) is not None
        below = layer_below(graph, position, section) if id(node.outputs[0]) in once else None
        matrix = None if below is None else linear_matrix(graph.sample_nodes[below].rule)
        scales = matrix is not None and 2 * shared >= matrix.shape[1]
        for value in node.inputs:
            if value.active and value.samples is not None:
                at[id(value)] = _entries(value, {id(value)} if stays or scales else set())
                if stays:
                    once.add(id(value))
        most = max(most, sum(at.values()))
        together = [node.inputs[i] for i in node.rule.uses if (position, i) not in graph.shares]
        jacobians.update((id(value), prod(value.shape)) for value in together)
        for value in () if together else node.outputs:
            at.pop(id(value), None)
    return max(most, sum(at.values()) + 2 * sum(jacobians.values()))


@once_per_graph
def overwritten(graph: Graph) -> frozenset[int]:
    """Nodes that may write over the columns at their result: one reader alone made them."""
    return frozenset(
        position
        for position, node in enumerate(graph.sample_nodes)
        if isinstance(node.rule, FromOutput) and graph.read_once(node.outputs[0])
        for reader in graph.readers[id(node.outputs[0])]
        if reader is not None and reader.rule.makes_new
    )


@once_per_graph
def scalings(graph: Graph) -> dict[int, int]:
    """Activations of a linear layer's result that no one else reads, with the layer's node."""
    found: dict[int, int] = {}
    for position, node in enumerate(graph.sample_nodes):
        operands = [one for one, want in zip(node.inputs, node.wanted, strict=True) if want]
        if not isinstance(node.rule, (Elementwise, FromOutput)) or node.rule.uses:
            continue
        if len(operands) == 1 and operands[0].shape == node.outputs[0].shape:
            below = graph.made_for_one(operands[0])
            if below is not None and linear_matrix(graph.sample_nodes[below].rule) is not None:
                found[position] = below
    return found


def layer_below(graph: Graph, position: int, section: Section) -> int | None:
    """The linear layer below an activation, if both are one step for shared columns."""
    below = scalings(graph).get(position)
    if below is None or below < section.first:
        return None
    node = graph.sample_nodes[below]
    alone = all((below, index) in graph.shares for index in node.rule.uses)
    return below if alone and node.outputs[0] is not section.exit else None


def _entries(value: Value, once: set[int]) -> int:
    """Numbers of one column at a value; those in ``once`` have the same for all samples."""
    assert value.samples is not None
    return prod(value.shape) // (value.samples.count if id(value) in once else 1)


def column_chunks(
    graph: Graph,
    count: int,
    budget: int | None,
    size: int,
    section: Section | None = None,
    shared: bool = False,
) -> Iterator[tuple[int, int]]:
    """Ranges of columns, about equal, such that their way back stays within the budget in bytes."""
    allowed = default_budget(graph, size) if budget is None else budget
    if shared:
        allowed = min(allowed, CACHE)
    step = max(1, count)
    # Fewer columns at a time may be ones that are no longer worth sharing.
    for _ in range(2 if shared else 1):
        most = widest(graph, section, step if shared else 0)
        step = min(step, max(1, allowed // max(1, most * size)))
    step = -(-count // max(1, -(-count // step)))
    for first in range(0, count, max(1, step)):
        yield first, min(first + step, count)


def default_budget(graph: Graph, size: int) -> int:
    """Half as much as the activations of the forward pass, and at least 16 MiB.

    The other half is for what ops need beside the columns.
    """
    return max(graph.trace.entries * size // 2, 1 << 24)
