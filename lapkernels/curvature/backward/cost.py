"""What the ways back cost, and which one costs least.

Costs are in units of a multiply-add inside a large matrix product. The rates were measured on one
x86 core with AVX2, float32: they need to be right within a factor of two or so, since ways that are
as close as that take about the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import inf, prod

from lapkernels.curvature.backward.budget import layer_below
from lapkernels.curvature.backward.windows import Layout, most_pixels, tile_count
from lapkernels.curvature.recording.graph import Graph, Section, once_per_graph
from lapkernels.curvature.recording.trace import Value
from lapkernels.ops.serving import choice
from lapkernels.rules import WeightUse
from lapkernels.rules.affine import linear_matrix

# An entry of a column that an op reads or writes.
ENTRY = 8.0
# An op that is called once more.
CALL = 1e6
# Of a matrix that is triangular, in blocks: the products that are left.
TRIANGLE = 0.6

# Of a cut that is forced: taken whatever all else costs.
FORCED = -1e30


@dataclass(frozen=True)
class Cut:
    """A value that all columns pass, behind the sample nodes from ``position`` on."""

    position: int
    value: Value


@dataclass(frozen=True)
class Way:
    """Cuts to compress at, and whether columns are windows up to the first of them."""

    cuts: tuple[Cut, ...] = ()
    windows: bool = False


def decomposition(columns: int, features: int) -> float:
    """A QR decomposition of [columns, features]: small ones run far from peak."""
    return columns * features * (1.5 * features + 250)


@once_per_graph
def products(graph: Graph, position: int) -> tuple[float, float]:
    """Multiply-adds of one column at a node: pulled back, and squared into the parameters."""
    node = graph.sample_nodes[position]
    pulled = summed = 0.0
    for use in node.rule.uses.values():
        if isinstance(use, WeightUse):
            layer = float(prod(use.shape) * use.positions * use.count)
            summed += 0.0 if use.positions == 1 else layer
            if any(node.wanted):
                pulled += layer
    return pulled, summed


def column_cost(graph: Graph, position: int, layout: Layout | None = None) -> float:
    """One column of all samples at a node, as a window where the layout has windows."""
    node = graph.sample_nodes[position]
    share = window_share(node.outputs[0], layout)
    values = [one for one in (*node.inputs, *node.outputs) if one.active and one.samples]
    moved = ENTRY * sum(prod(value.shape) for value in values) * share
    pulled, summed = products(graph, position)
    if not pulled and not summed:
        return moved * (1 if share == 1 else 2)
    # Convolutions of few channels run far from peak.
    channels = [use.shape[0] * use.shape[1] for use in node.rule.uses.values() if summed_of(use)]
    small = 1 / min(channels, default=inf)
    if share < 1:
        return moved + share * (pulled * (2.5 + 25 * small) + summed * (3.5 + 20 * small))
    return moved + pulled * (1 + 100 * small) + summed * (0.9 + 20 * small)


def windows_cost(graph: Graph, section: Section, layout: Layout, count: int, budget: int) -> float:
    """``count`` columns that start at the pixels of a section's entry, as windows."""
    samples, _, *size = section.entry.shape
    each = count // max(1, prod(size)) * samples * section.entry.dtype.itemsize
    tiles = tile_count(size, layout.multiple, most_pixels(layout, each, budget))
    return sum(count * column_cost(graph, p, layout) + CALL * tiles for p in layout.positions)


def summed_of(use: object) -> bool:
    """Whether a use is one of a convolution or of a layer at several positions."""
    return isinstance(use, WeightUse) and use.positions > 1


def window_share(value: Value, layout: Layout | None) -> float:
    """How much of an image the windows at a value are."""
    place = None if layout is None else layout.places.get(id(value))
    return 1.0 if place is None else prod(place.width) / prod(value.shape[2:])


@once_per_graph
def shared_layers(graph: Graph, section: Section) -> tuple[set[int], int | None]:
    """Nodes that columns shared by all samples pass once, and the layer that ends the sharing."""
    at, once = id(section.entry), set()
    for position in reversed(range(section.first, section.last)):
        node = graph.sample_nodes[position]
        if id(node.outputs[0]) != at:
            continue
        below = layer_below(graph, position, section)
        if below is not None:
            return {*once, position}, below
        if linear_matrix(node.rule) is None:
            break
        once.add(position)
        at = id(next(value for value in node.inputs if value.samples is not None))
    return once, None


def chosen_way(
    graph: Graph,
    cuts: list[Cut],
    count: int,
    *,
    layout: Layout | None = None,
    shared: bool = False,
    budget: int,
) -> Way:
    """The way of least cost for ``count`` columns, unless another one is forced.

    ``layout`` has the windows of the whole way back, if columns may be windows.
    """
    size = graph.trace.prediction.element_size()
    nodes = len(graph.sample_nodes)
    samples = graph.trace.count
    once, scaled = shared_layers(graph, Section.whole(graph)) if shared else (set(), None)
    costs = [column_cost(graph, p) / (samples if p in once else 1) for p in range(nodes)]
    plain = [0.0, *accumulate(costs)]
    triangle = 0.0 if scaled is None else (1 - TRIANGLE) * products(graph, scaled)[0]
    windowed, calls = plain, 0.0
    if layout is not None:
        windowed = [0.0, *accumulate(column_cost(graph, p, layout) for p in range(nodes))]
        pixels = max(1, prod(graph.trace.output.shape[2:]))
        most = most_pixels(layout, count // pixels * samples * size, budget)
        calls = CALL * tile_count(graph.trace.output.shape[2:], layout.multiple, most)
    starts = {True: [True], False: [False], None: [False, True]}[choice("windows")]
    if layout is None:
        starts = [False]
    # Ways to have come to a cut: cost so far, columns from there on, its position, the way.
    ways: list[tuple[float, int, int, Way]] = [(0.0, count, nodes, Way((), w)) for w in starts]

    def carried(v: int, last: int, first: int, way: Way) -> float:
        windows = way.windows and not way.cuts
        below = windowed if windows else plain
        less = v * triangle if way.cuts and scaled is not None and first <= scaled < last else 0.0
        return v * (below[last] - below[first]) - less + (calls * (last - first) if windows else 0)

    for cut in cuts if choice("compressed") is not False else []:
        assert cut.value.samples is not None
        d = prod(cut.value.shape) // samples
        arrived = []
        for cost, v, last, way in ways:
            if v > d:
                times = 1 if cut.position in once else samples
                compressed = FORCED if choice("compressed") else decomposition(v, d) * times
                taken = Way((*way.cuts, cut), way.windows)
                cost += carried(v, last, cut.position, way) + compressed
                arrived.append((cost, d, cut.position, taken))
        if arrived:
            ways.append(min(arrived, key=lambda way: way[0]))
    rest = [cost + carried(v, last, 0, way) for cost, v, last, way in ways]
    return ways[rest.index(min(rest))][3]
