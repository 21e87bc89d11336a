"""What a call will do at every layer, as a table: for ``explain=True``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lapkernels.curvature.budget import column_chunks, default_budget
from lapkernels.curvature.local import Layout, local_layout
from lapkernels.curvature.passes import Pass
from lapkernels.curvature.plan import Plan, Section
from lapkernels.curvature.sections import chosen_cuts, node_cost
from lapkernels.curvature.trace import Node
from lapkernels.likelihoods import Columns, Likelihood


@dataclass(frozen=True)
class Row:
    """One layer: what is carried to it, its multiply-adds, and the bytes alive there."""

    layer: str
    op: str
    carried: str
    products: float
    bytes: float

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        return (
            self.layer,
            self.op,
            self.carried,
            f"{2 * self.products / 1e6:.4g} MFLOP",
            f"{self.bytes / 1e6:.3g} MB",
        )


def explanation(
    one: Pass, likelihood: Likelihood, method: str, samples: int = 1, joint: bool = False
) -> str:
    """A table of what a method carries to each layer.

    Where parameters are ``joint`` by their columns, these are neither windows nor compressed.
    """
    columns = likelihood.columns(one.prediction, one.target)
    if method == "exact" and not one.by_autograd and not joint:
        return explain_exact(one.plan, columns, one.budget)
    counts = {"exact": columns.count, "mc": samples}
    return explain_columns(one.plan, counts.get(method, 1), one.budget)


def explain_exact(plan: Plan, columns: Columns, budget: int | None) -> str:
    """The table of the exact diagonal: sections between bottlenecks, windows, plain columns."""
    size = plan.trace.prediction.element_size()
    allowed = default_budget(plan, size) if budget is None else budget
    entry, last, count = plan.trace.output, len(plan.sample_nodes), columns.count
    local = columns.local()
    rows: list[Row] = []
    whole = None if local is None else local_layout(plan, Section.whole(plan))
    for cut in [*chosen_cuts(plan, count, whole), None]:
        section = Section(0 if cut is None else cut.position, last, entry)
        layout = None if local is None else local_layout(plan, section)
        step = next(column_chunks(plan, count, allowed, size, section))[1]
        for position in reversed(range(section.first, last)):
            if plan.sample_nodes[position].rule.uses:
                rows.append(_row(plan, position, count, step, layout, size))
        if cut is None:
            break
        assert cut.value.samples is not None
        d = prod(cut.value.shape) // cut.value.samples.count
        rows.append(Row("", "compressed", f"{count} columns to {d}", 0.0, 0.0))
        entry, last, count, local = cut.value, cut.position, min(d, count), None
    return _table(rows)


def explain_columns(plan: Plan, count: int, budget: int | None) -> str:
    """The table of a method that carries plain columns."""
    size = plan.trace.prediction.element_size()
    step = next(column_chunks(plan, count, budget, size))[1]
    places = reversed(range(len(plan.sample_nodes)))
    rows = [
        _row(plan, position, count, step, None, size)
        for position in places
        if plan.sample_nodes[position].rule.uses
    ]
    return _table(rows)


def _row(plan: Plan, position: int, count: int, step: int, layout: Layout | None, size: int) -> Row:
    node = plan.sample_nodes[position]
    cost = float(node_cost(plan, position))
    entries = prod(node.outputs[0].shape)
    place = None if layout is None else layout.places.get(id(node.outputs[0]))
    if place is None:
        carried = f"{count} columns, {min(step, count)} at a time"
        return Row(node.path, _name(node), carried, cost * count, float(entries * step * size))
    image = node.outputs[0].shape[2:]
    share = prod(place.width) / prod(image)
    window = "×".join(map(str, place.width))
    carried = f"{count} windows of {window} in {'×'.join(map(str, image))}"
    return Row(node.path, _name(node), carried, cost * count * share, entries * share * step * size)


def _name(node: Node) -> str:
    return node.name.removeprefix("aten::")


def _table(rows: list[Row]) -> str:
    lines = [("layer", "op", "carried", "work", "memory"), *(row.cells() for row in rows)]
    widths = [max(len(line[c]) for line in lines) for c in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
