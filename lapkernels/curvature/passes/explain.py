"""What a call will do at every layer, and why, as a table: for ``explain=True``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lapkernels.curvature.backward.bottleneck import way_of
from lapkernels.curvature.backward.budget import column_chunks, default_budget
from lapkernels.curvature.backward.columns import Collector, pull_columns
from lapkernels.curvature.backward.cost import TRIANGLE, products, shared_layers, window_share
from lapkernels.curvature.backward.windows import Layout, local_layout
from lapkernels.curvature.passes.passes import Pass
from lapkernels.curvature.recording.graph import Graph, Section, Share
from lapkernels.curvature.recording.trace import Node
from lapkernels.likelihoods import Columns, Likelihood
from lapkernels.ops import skips_zeros
from lapkernels.rules import WeightUse


@dataclass(frozen=True)
class Row:
    """One layer: what is carried to it, its multiply-adds, the bytes alive, and the choice."""

    layer: str
    op: str
    carried: str
    products: float
    bytes: float
    choice: str

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        return (
            self.layer,
            self.op,
            self.carried,
            f"{2 * self.products / 1e6:.4g} MFLOP",
            f"{self.bytes / 1e6:.3g} MB",
            self.choice,
        )


@dataclass(frozen=True)
class Carried:
    """What arrives at the nodes of a section."""

    count: int
    step: int
    layout: Layout | None
    once: frozenset[int]
    scaled: int | None
    triangular: bool


def explanation(
    one: Pass, likelihood: Likelihood, method: str, samples: int = 1, joint: bool = False
) -> str:
    """A table of what a method carries to each layer, and how a first check with autograd went.

    Where parameters are ``joint`` by their columns, these are neither windows nor compressed.
    """
    columns = likelihood.columns(one.prediction, one.target)
    if method == "exact" and not one.by_autograd and not joint:
        return f"{explain_exact(one.graph, columns, one.budget)}\n{one.check}"
    counts = {"exact": columns.count, "mc": samples}
    return explain_columns(one, counts.get(method, 1))


def explain_exact(graph: Graph, columns: Columns, budget: int | None) -> str:
    """The table of the exact diagonal: sections between bottlenecks, windows, plain columns."""
    size = graph.trace.prediction.element_size()
    allowed = default_budget(graph, size) if budget is None else budget
    entry, last, count = graph.trace.output, len(graph.sample_nodes), columns.count
    way = way_of(graph, columns, columns.local() is not None, allowed)
    windows, shared = way.windows, columns.shared
    densities = densities_of(graph)
    rows: list[Row] = []
    for cut in [*way.cuts, None]:
        section = Section(0 if cut is None else cut.position, last, entry)
        once, scaled = shared_layers(graph, section) if shared else (set(), None)
        layout = local_layout(graph, section) if windows else None
        step = next(column_chunks(graph, count, allowed, size, section, shared))[1]
        here = Carried(count, step, layout, frozenset(once), scaled, bool(rows))
        rows += _rows(graph, section, here, densities)
        if cut is None:
            break
        assert cut.value.samples is not None
        d = prod(cut.value.shape) // cut.value.samples.count
        rows.append(Row("", "", f"{count} columns to {d}", 0.0, 0.0, "compressed"))
        shared = shared and cut.position in once
        entry, last, count, windows = cut.value, cut.position, min(d, count), False
    return _table(rows)


def explain_columns(one: Pass, count: int, layout: Layout | None = None) -> str:
    """The table of what carries plain columns, or windows if there is a layout."""
    densities = {} if one.by_autograd else densities_of(one.graph)
    step = next(iter(one.chunks(count)), (0, 1))[1]
    here = Carried(count, step, layout, frozenset(), None, False)
    table = _table(_rows(one.graph, Section.whole(one.graph), here, densities))
    return f"{table}\n{one.check}"


class Densities(Collector):
    """The layers that skip zeros, by their share of entries that are not zero in a column."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def share(self, share: Share, s: Tensor) -> None:
        use = share.use
        if isinstance(use, WeightUse) and skips_zeros(use.arrange(s), use.geometry):
            self.found[share.path] = int(torch.count_nonzero(s)) / s.numel()

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None: ...


def densities_of(graph: Graph) -> dict[str, float]:
    """Carry one column back to see where zeros are shared."""
    densities = Densities()
    column = torch.ones_like(graph.trace.prediction).unsqueeze(0)
    pull_columns(graph, column, densities)
    return densities.found


def _rows(graph: Graph, section: Section, here: Carried, densities: dict[str, float]) -> list[Row]:
    return [
        _row(graph, position, here, densities)
        for position in reversed(range(section.first, section.last))
        if graph.sample_nodes[position].rule.uses
    ]


def _row(graph: Graph, position: int, here: Carried, densities: dict[str, float]) -> Row:
    node = graph.sample_nodes[position]
    pulled, summed = products(graph, position)
    value, count = node.outputs[0], here.count
    entries = float(prod(value.shape))
    share = window_share(value, here.layout)
    carried, choice = f"{count} columns, {min(here.step, count)} at a time", "columns"
    if share < 1:
        assert here.layout is not None
        window = "×".join(map(str, here.layout.places[id(value)].width))
        carried = f"{count} windows of {window} in {'×'.join(map(str, value.shape[2:]))}"
        choice = "windows"
    elif position in here.once:
        pulled, entries = pulled / graph.trace.count, entries / graph.trace.count
        carried, choice = f"{count} columns for all samples", "shared"
    elif position == here.scaled:
        pulled *= TRIANGLE if here.triangular else 1.0
        choice = "scaled weights"
    elif node.path in densities:
        pulled, summed = pulled * densities[node.path], summed * densities[node.path]
        choice = f"columns, {densities[node.path]:.0%} not zero"
    work = (pulled + summed) * count * share
    size = graph.trace.prediction.element_size()
    memory = entries * share * min(here.step, count) * size
    return Row(node.path, _name(node), carried, work, memory, choice)


def _name(node: Node) -> str:
    return node.name.removeprefix("aten::")


def _table(rows: list[Row]) -> str:
    head = ("layer", "op", "columns or windows", "work", "memory", "choice")
    lines = [head, *(row.cells() for row in rows)]
    widths = [max(len(line[c]) for line in lines) for c in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
