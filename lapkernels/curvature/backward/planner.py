"""The plan of a call: what is pulled back through each part of a recorded graph, decided once.

Columns pass sections of the graph, each a ``Stage``: as plain columns, as windows of images, or by
autograd; at the end of a section they may be compressed. A diagonal goes from layer to layer. The
backward pass executes a plan and ``explain`` prints it. What only running shows is a condition in
it: linear layers multiply columns once, and weights are scaled, where columns are the same for all
samples; zeros are skipped where columns share them; a chain is passed by one kernel if that takes
its tensors, else layer by layer.
"""

from __future__ import annotations

from dataclasses import replace

from lapkernels.curvature.backward.carry import Plan, Stage
from lapkernels.curvature.backward.chains import chains
from lapkernels.curvature.backward.cost import (
    CALL,
    Load,
    Local,
    Shared,
    cheapest,
    column_cost,
    shared_by_samples,
    widest,
)
from lapkernels.curvature.backward.layout import Layout, local_layout, tile_count
from lapkernels.curvature.backward.start import Start, window_start
from lapkernels.curvature.recording.graph import Graph, Section, once_per_graph
from lapkernels.curvature.recording.trace import Value
from lapkernels.ops.serving import choice
from lapkernels.rules.affine import Convolution, Linear

# Chunks of shared columns have at most so many bytes, to stay in the cache.
CACHE = 3 << 21


def columns_at_once(graph: Graph, budget: int, kept: int = 0) -> int:
    """Columns that fit into a budget in bytes, with ``kept`` numbers beside each; at least one."""
    size = graph.trace.prediction.element_size()
    return max(1, budget // max(1, (widest(graph, Section.whole(graph)) + kept) * size))


@once_per_graph
def plan_columns(graph: Graph, load: Load) -> Plan:
    """A plan for columns from the output on."""
    return Plan(_stages(graph, Section.whole(graph), load))


def plan_autograd(graph: Graph, count: int) -> Plan:
    """A plan for columns pulled back by autograd, one at a time."""
    reason = (*graph.trace.opaque, "route='autograd'")[0]
    section = Section.whole(graph)
    return Plan((Stage(section, "autograd", count, 1, 0.0, graph.trace.entries, reason),))


@once_per_graph
def plan_diagonal(graph: Graph) -> Plan:
    """A plan for a diagonal from the output on."""
    activations: dict[int, int] = {}
    for position, node in enumerate(graph.sample_nodes):
        maker = graph.made_for_one(node.inputs[0]) if node.rule.passes_activation else None
        if maker is not None and graph.sample_nodes[maker].rule.is_activation:
            activations[position] = maker
    nodes = tuple(reversed(range(len(graph.sample_nodes))))
    return Plan(diagonal=nodes, chains=chains(graph), activations=activations)


@once_per_graph
def plan_mixed(
    graph: Graph, threshold: float, budget: int, count: int | None, local: Local | None
) -> Plan:
    """A plan for columns at values of at most ``threshold`` features, a diagonal elsewhere.

    M starts as ``count`` columns, which may be ``local``, or as a diagonal if that is None.
    """
    nodes, output = graph.sample_nodes, graph.trace.output
    reached: set[int] = set()

    def narrow(value: Value) -> bool:
        return value.samples is not None and value.features <= threshold

    def stages(start: Value, count: int, last: int, local: Local | None) -> tuple[Stage, ...]:
        made = [value for node in nodes[:last] for value in node.outputs]
        ends = tuple(value for value in made if value is not start and not narrow(value))
        section = Section(0, last, start, ends=ends)
        for _, node in section.passed(graph):
            reached.update(id(value) for value in node.wanted_inputs if value in ends)
        return _stages(graph, section, Load(count, budget, local=local, compress=True))

    first: tuple[Stage, ...] = ()
    if count is None:
        reached.add(id(output))
    else:
        first = stages(output, count, len(nodes), local)
    diagonal: list[int] = []
    columns: dict[tuple[int, int], tuple[Stage, ...]] = {}
    for position in reversed(range(len(nodes))):
        node = nodes[position]
        # There the diagonal rule is exact: all inputs are wide, all weights used once.
        widens = isinstance(node.rule, (Convolution, Linear))
        widens = widens and all((position, index) in graph.shares for index in node.rule.uses)
        widens = widens and not any(map(narrow, node.wanted_inputs))
        arrived = [value for value in node.outputs if id(value) in reached]
        for value in arrived if not widens else ():
            if narrow(value):
                index = node.outputs.index(value)
                columns[position, index] = stages(value, value.features, position + 1, Local())
        if any(widens or not narrow(value) for value in arrived):
            diagonal.append(position)
            reached.update(map(id, node.wanted_inputs))
    return Plan(first, tuple(diagonal), columns=columns)


def _stages(graph: Graph, section: Section, load: Load) -> tuple[Stage, ...]:
    """The cheapest stages for columns from a section's entry to the parameters."""
    start = None
    if load.local is not None and choice("windows") is not False:
        start = window_start(graph, section, load.local.dim)
    windows, taken = cheapest(graph, section, load, start)
    if not windows:
        start = None
    found: list[Stage] = []
    entry, last = section.entry, section.last
    for cut in [*taken, None]:
        first, exit = (0, None) if cut is None else (cut.position, cut.value)
        part = Section(first, last, entry, exit, section.ends)
        layout = None if start is None else local_layout(graph, start.section(part))
        if start is None or layout is None:
            stage = _columns_stage(graph, part, load, triangular=bool(found))
        else:
            stage = _windows_stage(graph, start.section(part), load, start, layout)
        found.append(stage)
        if cut is not None:
            entry, last = cut.value, cut.position
            shared = load.shared and cut.position in stage.once
            load, start = replace(load, count=cut.value.features, shared=shared), None
    return tuple(found)


def _windows_stage(
    graph: Graph, section: Section, load: Load, start: Start, layout: Layout
) -> Stage:
    assert load.local is not None
    at_pixel = load.local.per_pixel(start) * section.entry.shape[0]
    step = layout.pixels(at_pixel * section.entry.dtype.itemsize, load.budget)
    calls = CALL * tile_count(section.entry.shape[2:], layout.multiple, step)
    passed = [position for position, _ in section.passed(graph)]
    cost = sum(load.count * column_cost(graph, p, layout) + calls for p in passed)
    whole = sum(load.count * column_cost(graph, p) for p in passed)
    reason = f"{cost:.2g} multiply-adds as windows, {whole:.2g} as images"
    entries = 3 * layout.entries * at_pixel * step
    return Stage(section, "windows", load.count, step, cost, entries, reason, layout, start)


def _columns_stage(graph: Graph, section: Section, load: Load, *, triangular: bool) -> Stage:
    size, samples, count = graph.trace.prediction.element_size(), graph.trace.count, load.count
    once = shared_by_samples(graph, section) if load.shared else Shared()
    budget = min(load.budget, CACHE) if load.shared else load.budget
    step, most = max(1, count), 0
    # With fewer columns at a time, scaling the weight may no longer pay.
    for _ in range(2):
        most = widest(graph, section, once.values_with(graph, step)) + load.kept
        step = min(step, max(1, budget // max(1, most * size)))
    step = -(-count // max(1, -(-count // step))) or 1
    scaled = once.scaled(graph, step)
    nodes = once.nodes.union(scaled)
    passed = [position for position, _ in section.passed(graph)]
    cost = count * sum(column_cost(graph, p) / (samples if p in nodes else 1) for p in passed)
    reason = f"{cost:.2g} multiply-adds"
    return Stage(
        section, "columns", count, step, cost, most * step, reason,
        once=nodes, scaled=scaled, triangular=triangular,
    )  # fmt: skip
