"""The cost model of columns in the backward pass, time and memory, and the cheapest stages.

Costs are in units of a multiply-add inside a large GEMM. The rates were measured on one x86 core
with AVX2, float32: a factor of two is accurate enough, since routes that are closer take about the
same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import inf, prod

from lapkernels.curvature.backward.columns import overwritten
from lapkernels.curvature.backward.layout import Layout, local_layout, tile_count
from lapkernels.curvature.backward.start import Start
from lapkernels.curvature.recording.graph import Graph, Section, once_per_graph
from lapkernels.curvature.recording.trace import Value
from lapkernels.ops.serving import choice
from lapkernels.rules import WeightUse
from lapkernels.rules.affine import linear_matrix
from lapkernels.rules.base.samples import Samples
from lapkernels.rules.elementwise import Elementwise, FromOutput
from lapkernels.rules.shape import Reshape

# An entry of a column that an op reads or writes.
ENTRY = 8.0
# The overhead of one more call of an op.
CALL = 1e6
# The share of products that remains for a triangular matrix, in blocks.
TRIANGLE = 0.6

# The cost that makes a forced cut the cheapest.
FORCED = -1e30


def decomposition(columns: int, features: int) -> float:
    """A QR decomposition of [columns, features]: small ones run far from peak."""
    return columns * features * (1.5 * features + 250)


@once_per_graph
def products(graph: Graph, position: int) -> tuple[float, float]:
    """Multiply-adds of one column at a node: its pull-back, and its share of the parameters."""
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
    share = 1.0 if layout is None else layout.window_share(node.outputs[0])
    values = [one for one in (*node.inputs, *node.outputs) if one.active and one.samples]
    moved = ENTRY * sum(prod(value.shape) for value in values) * share
    pulled, summed = products(graph, position)
    if not pulled and not summed:
        return moved * (1 if share == 1 else 2)
    # Convolutions of few channels run far from peak.
    uses = [use for use in node.rule.uses.values() if isinstance(use, WeightUse)]
    channels = [use.shape[0] * use.shape[1] for use in uses if use.positions > 1]
    small = 1 / min(channels, default=inf)
    if share < 1:
        return moved + share * (pulled * (2.5 + 25 * small) + summed * (3.5 + 20 * small))
    return moved + pulled * (1 + 100 * small) + summed * (0.9 + 20 * small)


@once_per_graph
def widest(graph: Graph, section: Section, once: frozenset[int] = frozenset()) -> int:
    """The most numbers of one column that are alive at a time in a section.

    Where weights have several uses the columns at them wait for each other, and then have one
    sample's Jacobian at least, of the uses so far and of the next one. At values that are passed
    ``once``, by their id, columns are the same for all samples.
    """

    def entries(value: Value) -> int:
        return value.features if id(value) in once else prod(value.shape)

    at = {id(section.entry): entries(section.entry)}
    most = sum(at.values())
    jacobians: dict[int, int] = {}
    passed = {position for position, _ in section.passed(graph)}
    for position in reversed(range(section.first, section.last)):
        node = graph.sample_nodes[position]
        if position not in passed:
            for value in node.outputs:
                at.pop(id(value), None)
            continue
        if position in overwritten(graph):
            at.pop(id(node.outputs[0]), None)
        at.update((id(value), entries(value)) for value in node.wanted_inputs)
        most = max(most, sum(at.values()))
        together = [node.inputs[i] for i in node.rule.uses if not graph.is_alone(position, i)]
        jacobians.update((id(value), prod(value.shape)) for value in together)
        for value in () if together else node.outputs:
            at.pop(id(value), None)
    return max(most, sum(at.values()) + 2 * sum(jacobians.values()))


@dataclass(frozen=True)
class Local:
    """Columns that start at one entry each, or ``columns`` at each set of entries along ``dim``.

    They start at all entries, or if ``some`` at chosen ones.
    """

    columns: int = 1
    dim: int | None = None
    some: bool = False

    def per_pixel(self, start: Start) -> int:
        """Columns that start at a pixel."""
        return self.columns if self.some else self.columns * start.sets


@dataclass(frozen=True)
class Load:
    """``count`` columns to pull back within a ``budget`` in bytes.

    They are ``shared`` if all samples have the same. Those that are ``local`` may be windows; they
    may be fewer behind a bottleneck where it is allowed to ``compress``. With each ``kept`` numbers
    are held until all parameters have it.
    """

    count: int
    budget: int
    shared: bool = False
    local: Local | None = None
    compress: bool = False
    kept: int = 0


@dataclass(frozen=True)
class Cut:
    """A value that all columns pass, at which the sample nodes from ``position`` on are done."""

    position: int
    value: Value


@dataclass(frozen=True)
class Shared:
    """What columns that are the same for all samples pass: linear nodes, and values by their id.

    Behind these comes an ``activation`` with a linear ``layer`` below, which ends it.
    """

    nodes: frozenset[int] = frozenset()
    values: frozenset[int] = frozenset()
    activation: int | None = None
    layer: int | None = None

    def scaled(self, graph: Graph, columns: int) -> dict[int, int]:
        """The activation and its layer, if the layer's weight is scaled for so many columns."""
        if self.activation is None or self.layer is None:
            return {}
        matrix = linear_matrix(graph.sample_nodes[self.layer].rule)
        wanted = choice("scaled")
        if matrix is None or not (4 * columns >= matrix.shape[1] if wanted is None else wanted):
            return {}
        return {self.activation: self.layer}

    def values_with(self, graph: Graph, columns: int) -> frozenset[int]:
        """The values at which only the columns of one sample are in memory."""
        scaled = [graph.sample_nodes[layer] for layer in self.scaled(graph, columns).values()]
        return self.values.union(id(node.outputs[0]) for node in scaled)


@once_per_graph
def shared_by_samples(graph: Graph, section: Section) -> Shared:
    """How far columns that are the same for all samples at a section's entry stay the same."""
    at, nodes, values = section.entry, set[int](), {id(section.entry)}
    for position, node in section.passed(graph):
        if node.outputs[0] is not at or len(node.wanted_inputs) != 1:
            break
        (below,) = node.wanted_inputs
        layer = _layer_below(graph, section, position)
        if layer is not None:
            return Shared(frozenset(nodes), frozenset(values), position, layer)
        rows = all(value.samples == Samples(graph.trace.count) for value in (at, below))
        if linear_matrix(node.rule) is None and not (isinstance(node.rule, Reshape) and rows):
            break
        nodes.add(position)
        values.add(id(below))
        at = below
    return Shared(frozenset(nodes), frozenset(values))


def _layer_below(graph: Graph, section: Section, position: int) -> int | None:
    """The linear layer whose only reader is this activation, if both can be one step."""
    node = graph.sample_nodes[position]
    (value,) = node.wanted_inputs
    below = graph.made_for_one(value)
    if not isinstance(node.rule, (Elementwise, FromOutput)) or node.rule.uses:
        return None
    if value.shape != node.outputs[0].shape or below is None or below < section.first:
        return None
    layer = graph.sample_nodes[below]
    alone = all((below, index) in graph.shares for index in layer.rule.uses)
    linear = linear_matrix(layer.rule) is not None
    return below if linear and alone and value is not section.exit else None


@once_per_graph
def cuts(graph: Graph) -> list[Cut]:
    """All cuts, from the output on."""
    live = {id(graph.trace.output)}
    values = {id(graph.trace.output): graph.trace.output}
    uses = [(p, index) for p, node in enumerate(graph.sample_nodes) for index in node.rule.uses]
    # Jacobians of a weight with several uses are added over all of them.
    added = [position for position, index in uses if not graph.is_alone(position, index)] or [0]
    found = []
    for position in reversed(range(len(graph.sample_nodes))):
        node = graph.sample_nodes[position]
        live -= {id(value) for value in node.outputs}
        live |= {id(value) for value in node.wanted_inputs}
        values.update((id(value), value) for value in node.wanted_inputs)
        if len(live) == 1 and not min(added) < position <= max(added):
            found.append(Cut(position, values[next(iter(live))]))
    return found


def _allowed_cuts(graph: Graph, section: Section) -> list[Cut]:
    """The cuts inside a section, before any of its ends."""
    if choice("compressed") is False:
        return []
    makers = [graph.positions[id(graph.makers[id(value)])] for value in section.ends]
    above = max(makers, default=-1)
    return [cut for cut in cuts(graph) if above < cut.position < section.last]


def cheapest(
    graph: Graph, section: Section, load: Load, start: Start | None
) -> tuple[bool, tuple[Cut, ...]]:
    """The cheapest start, as windows or images, and the cuts where columns are compressed.

    ``start`` is where columns start that may be windows.
    """
    samples, size = graph.trace.count, graph.trace.prediction.element_size()
    once = shared_by_samples(graph, section) if load.shared else Shared()
    nodes = once.nodes.union(once.scaled(graph, load.count))
    passed = {position for position, _ in section.passed(graph)}

    def summed(layout: Layout | None) -> list[float]:
        costs = [column_cost(graph, p, layout) if p in passed else 0.0 for p in range(section.last)]
        if layout is None:
            costs = [cost / (samples if p in nodes else 1) for p, cost in enumerate(costs)]
        elif start is not None:
            costs[start.last :] = [0.0] * (section.last - start.last)
        return [0.0, *accumulate(costs)]

    plain = windowed = summed(None)
    calls = 0.0
    layout = None if start is None else local_layout(graph, start.section(section))
    if layout is not None and start is not None and load.local is not None:
        windowed = summed(layout)
        most = layout.pixels(load.local.per_pixel(start) * samples * size, load.budget)
        calls = CALL * tile_count(start.image.shape[2:], layout.multiple, most)

    def carried(v: int, last: int, first: int, windows: bool, taken: tuple[Cut, ...]) -> float:
        windows = windows and not taken
        below = windowed if windows else plain
        less = 0.0
        if taken and once.layer is not None and first <= once.layer < last:
            saved = (1 - TRIANGLE) * products(graph, once.layer)[0]
            less = v * saved if once.scaled(graph, v) else 0.0
        return v * (below[last] - below[first]) - less + (calls * (last - first) if windows else 0)

    starts = {True: [True], False: [False], None: [False, True]}[choice("windows")]
    if layout is None:
        starts = [False]
    # Routes to a cut: cost so far, columns from there on, its position, and how it was reached.
    routes: list[tuple[float, int, int, bool, tuple[Cut, ...]]] = [
        (0.0, load.count, section.last, windows, ()) for windows in starts
    ]
    for cut in _allowed_cuts(graph, section) if load.compress else ():
        d, arrived = cut.value.features, []
        for cost, v, last, windows, taken in routes:
            if v > d:
                times = 1 if cut.position in once.nodes else samples
                compressed = FORCED if choice("compressed") else decomposition(v, d) * times
                cost += carried(v, last, cut.position, windows, taken) + compressed
                arrived.append((cost, d, cut.position, windows, (*taken, cut)))
        if arrived:
            routes.append(min(arrived, key=lambda route: route[0]))
    rest = [cost + carried(v, last, 0, windows, taken) for cost, v, last, windows, taken in routes]
    return routes[rest.index(min(rest))][3:]
