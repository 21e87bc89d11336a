"""The plan of a call as a table, for ``explain=True``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lapkernels.curvature.backward.carry import Plan, Stage
from lapkernels.curvature.backward.columns import Collector, pull_columns
from lapkernels.curvature.backward.cost import TRIANGLE, products
from lapkernels.curvature.backward.planner import plan_diagonal
from lapkernels.curvature.passes.passes import Pass
from lapkernels.curvature.recording.graph import Graph, Share
from lapkernels.likelihoods import Likelihood
from lapkernels.ops import skips_zeros
from lapkernels.ops.conv_input import has_kernel
from lapkernels.rules import WeightUse
from lapkernels.rules.affine import Convolution


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


def explanation(
    one: Pass, likelihood: Likelihood, method: str, samples: int = 1, threshold: float = 0
) -> str:
    """The plan's table, and the outcome of the first check against autograd."""
    if one.by_autograd or method not in ("exact", "approx", "mixed"):
        return explain_plan(one, one.plan(samples if method == "mc" else 1))
    if method == "approx":
        return explain_plan(one, plan_diagonal(one.graph))
    if method == "mixed":
        return explain_plan(one, one.plan_mixed(one.mixed_start(likelihood, threshold), threshold))
    columns = likelihood.columns(one.prediction, one.target)
    return explain_plan(one, one.plan_quadratic(columns, columns.local()))


def explain_plan(one: Pass, plan: Plan) -> str:
    """The table of a plan: the stages of columns, and the layers that a diagonal passes."""
    densities = {} if one.by_autograd else densities_of(one.graph)
    rows = list(_rows(one.graph, plan, densities))
    stages = [*plan.stages, *(stage for found in plan.columns.values() for stage in found)]
    size = one.prediction.element_size() / 1e6
    reasons = [
        f"{stage.count} by {stage.carrier}, {stage.entries * size:.3g} MB: {stage.reason}"
        for stage in stages
    ]
    return "\n".join([_table(rows), *reasons, one.check])


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
    """Pull one column back to measure the density at each layer."""
    densities = Densities()
    column = torch.ones_like(graph.trace.prediction).unsqueeze(0)
    pull_columns(graph, column, densities)
    return densities.found


def _rows(graph: Graph, plan: Plan, densities: dict[str, float]) -> Iterator[Row]:
    """The rows of a plan in order of execution."""
    yield from _stage_rows(graph, plan.stages, densities)
    in_chain = {
        id(link.layer): f"chain of {len(chain.links)} layers" if len(chain.links) > 1 else "chain"
        for chain in plan.chains.values()
        for link in chain.links
    }
    for position, node in reversed(list(enumerate(graph.sample_nodes))):
        for index in range(len(node.outputs)):
            yield from _stage_rows(graph, plan.columns.get((position, index), ()), densities)
        if position in plan.diagonal and node.rule.uses:
            choice = "with the activation" if position in plan.activations else "diagonal"
            work, entries = sum(products(graph, position)), prod(node.outputs[0].shape)
            memory = entries * graph.trace.prediction.element_size()
            choice = in_chain.get(id(node), choice)
            yield Row(node.path, _name(node.name), "diagonal", work, memory, choice)


def _stage_rows(
    graph: Graph, stages: tuple[Stage, ...], densities: dict[str, float]
) -> Iterator[Row]:
    for stage in stages:
        for position, node in stage.passed(graph):
            if node.rule.uses:
                yield _row(graph, position, stage, densities)
        if stage.section.exit is not None:
            fewer = f"{stage.count} columns to {stage.section.exit.features}"
            yield Row("", "", fewer, 0.0, 0.0, "compressed")


def _row(graph: Graph, position: int, stage: Stage, densities: dict[str, float]) -> Row:
    node = graph.sample_nodes[position]
    pulled, summed = products(graph, position)
    value, count = node.outputs[0], stage.count
    entries, share = float(prod(value.shape)), 1.0
    step = min(stage.step, count)
    choice: str = stage.route(position)
    carried = f"{count} columns, {step} at a time"
    if choice == "windows":
        assert stage.layout is not None
        share = stage.layout.window_share(value)
        window = "×".join(map(str, stage.layout.places[id(value)].width))
        carried = f"{count} windows of {window} in {'×'.join(map(str, value.shape[2:]))}"
    elif choice == "shared":
        pulled, entries = pulled / graph.trace.count, entries / graph.trace.count
        carried = f"{count} columns for all samples"
    elif choice == "scaled weights":
        pulled *= TRIANGLE if stage.triangular else 1.0
    elif choice == "columns" and node.path in densities:
        pulled, summed = pulled * densities[node.path], summed * densities[node.path]
        choice = f"columns, {densities[node.path]:.0%} not zero"
    elif choice == "columns" and isinstance(node.rule, Convolution) and node.rule.weight:
        layer = (graph.trace.prediction, node.rule.weight.tensor, node.rule.geometry)
        choice = f"columns by {'a kernel' if has_kernel(*layer) else 'torch'}"
    work = (pulled + summed) * count * share
    memory = entries * share * step * graph.trace.prediction.element_size()
    return Row(node.path, _name(node.name), carried, work, memory, choice)


def _name(op: str) -> str:
    return op.removeprefix("aten::")


def _table(rows: list[Row]) -> str:
    head = ("layer", "op", "columns or windows", "work", "memory", "choice")
    lines = [head, *(row.cells() for row in rows)]
    widths = [max(len(line[c]) for line in lines) for c in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
