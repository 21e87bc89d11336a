"""What runs is what the plan says: the route each step takes, for every kind of network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.backward import carry, columns, diagonal, mixed, windows
from lapkernels.curvature.backward.carry import Plan, Stage
from lapkernels.curvature.backward.chains import Chain
from lapkernels.curvature.backward.cost import Local
from lapkernels.curvature.backward.planner import plan_diagonal
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.passes.explain import explain_plan
from lapkernels.curvature.passes.passes import Pass, passes
from lapkernels.curvature.quantities.kronecker_sums import KroneckerSums
from lapkernels.curvature.recording.graph import Graph
from lapkernels.likelihoods import Gaussian
from lapkernels.ops.serving import forced
from lapkernels.rules.base.shared import is_shared
from tests.curvature.backward.networks import NETWORKS


@dataclass
class Taken:
    """The route to each layer, by position or path; columns at a time; shapes of bottlenecks."""

    routes: set[tuple[int | str, str]] = field(default_factory=set)
    chunks: Counter[int] = field(default_factory=Counter)
    compressed: set[tuple[int, ...]] = field(default_factory=set)

    def clear(self) -> None:
        """Forget all."""
        for found in (self.routes, self.chunks, self.compressed):
            found.clear()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """Watches the few functions through which everything goes."""
    found = Taken()

    def watch(where: Any, name: str, see: Callable[..., None]) -> None:
        real = getattr(where, name)

        def seen(*args: Any, **options: Any) -> Any:
            see(*args)
            return real(*args, **options)

        monkeypatch.setattr(where, name, seen)

    def plain(graph: Graph, position: int, index: int, out: Tensor, *rest: Any) -> None:
        found.routes.add((position, "shared" if is_shared(out) else "columns"))

    def by_autograd(graph: Graph, position: int, *rest: Any) -> None:
        found.routes.add((position, "autograd"))

    def scaled(graph: Graph, position: int, *rest: Any) -> None:
        found.routes.add((position, "scaled weights"))

    def window(walk: Any, position: int, *rest: Any) -> None:
        found.routes.add((position, "windows"))

    def chunk(graph: Graph, s: Tensor, *rest: Any) -> None:
        found.chunks[len(s)] += 1

    def squeezed(s: Tensor, known: Tensor | None, value: Any) -> None:
        found.compressed.add(tuple(value.shape))

    def on_diagonal(graph: Graph, position: int, *rest: Any) -> None:
        if graph.sample_nodes[position].rule.uses:
            found.routes.add((position, "diagonal"))

    def chain(self: Chain, *rest: Any) -> None:
        found.routes.update((link.layer.path, "chain") for link in self.links)

    watch(columns, "hand_out_one", plain)
    watch(columns, "_below_scaled", scaled)
    watch(windows._TileWalk, "_share", window)
    for module in (diagonal, mixed):
        watch(module, "hand_out_diagonal", on_diagonal)
    watch(carry, "hand_out_one", by_autograd)
    watch(carry, "pull_columns", chunk)
    watch(carry, "compress", squeezed)
    watch(Chain, "pull", chain)
    return found


def planned(one: Pass, plan: Plan) -> Taken:
    """What a plan says that will be carried."""
    graph, result = one.graph, Taken()
    stages = [*plan.stages, *(stage for found in plan.columns.values() for stage in found)]
    for stage in stages:
        _add_stage(graph, stage, result)
    in_chains = {id(link.layer) for chain in plan.chains.values() for link in chain.links}
    for position in plan.diagonal:
        node = graph.sample_nodes[position]
        if id(node) in in_chains:
            result.routes.add((node.path, "chain"))
        elif node.rule.uses:
            result.routes.add((position, "diagonal"))
    return result


def _add_stage(graph: Graph, stage: Stage, result: Taken) -> None:
    for position, node in stage.passed(graph):
        if node.rule.uses:
            result.routes.add((position, stage.route(position)))
    if stage.carrier == "columns":
        result.chunks.update(last - first for first, last in stage.chunks())
    if stage.section.exit is not None:
        result.compressed.add(tuple(stage.section.exit.shape))


CHOICES: dict[str, dict[str, bool]] = {
    "cheapest": {},
    "forced": {"windows": True, "compressed": True, "scaled": True},
    "forbidden": {"windows": False, "compressed": False, "scaled": False},
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    build, shape = NETWORKS[request.param]
    torch.manual_seed(0)
    return build().double(), torch.randn(shape, dtype=torch.float64)


def exact(one: Pass, chosen: dict[str, nn.Parameter]) -> Plan:
    factor = Gaussian().columns(one.prediction)
    return one.plan_quadratic(factor, None if one.by_autograd else factor.local())


def kron(one: Pass, chosen: dict[str, nn.Parameter]) -> Plan:
    return exact(KroneckerSums(chosen, reduce=False).begin(one), chosen)


def mixed_of(threshold: float) -> Callable[[Pass, dict[str, nn.Parameter]], Plan]:
    def plan(one: Pass, chosen: dict[str, nn.Parameter]) -> Plan:
        return one.plan_mixed(one.mixed_start(Gaussian(), threshold), threshold)

    return plan


def predictive(one: Pass, chosen: dict[str, nn.Parameter]) -> Plan:
    return one.keeping().plan(one.prediction[0].numel(), local=Local())


def variances(model: nn.Module, x: Tensor) -> Tensor:
    variance = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    return lk.predictive_variance(model, x, variance)


METHODS: dict[str, tuple[Callable[[Pass, Any], Plan], Callable[[nn.Module, Tensor], Any]]] = {
    "exact": (exact, lk.diag),
    "mc": (lambda one, chosen: one.plan(2), partial(lk.diag, method="mc", samples=2)),
    "kron": (kron, partial(lk.kron, method="exact")),
    "approx": (lambda one, chosen: plan_diagonal(one.graph), partial(lk.diag, method="approx")),
    "mixed": (mixed_of(12), partial(lk.diag, method="mixed", threshold=12)),
    "mixed wide": (mixed_of(200), partial(lk.diag, method="mixed", threshold=200)),
    "predictive": (predictive, variances),
}


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("method", METHODS)
def test_what_runs_is_what_is_planned(
    network: tuple[nn.Module, Tensor], method: str, choices: str, taken: Taken
) -> None:
    (model, x), (plan, run) = network, METHODS[method]
    with forced(**CHOICES[choices]):
        chosen, found = passes(model, x)
        (one,) = found
        if one.by_autograd and method in ("approx", "mixed", "mixed wide"):
            with pytest.raises(Refused, match="no diagonal"):
                run(model, x)
            return
        expected = planned(one, plan(one, chosen))
        taken.clear()
        run(model, x)
    if method.startswith("mixed"):
        # That a diagonal is the same for all samples only its numbers show.
        taken.routes = {(p, "columns" if r == "shared" else r) for p, r in taken.routes}
    assert taken == expected


def test_plans_are_of_many_kinds() -> None:
    """The networks above take every route by its cost alone."""
    routes: set[str] = set()
    compressed = 0
    for build, shape in NETWORKS.values():
        torch.manual_seed(0)
        chosen, found = passes(build().double(), torch.randn(shape, dtype=torch.float64))
        (one,) = found
        expected = planned(one, exact(one, chosen))
        routes.update(route for _, route in expected.routes)
        compressed += len(expected.compressed)
        if not one.by_autograd:
            routes.update(r for _, r in planned(one, plan_diagonal(one.graph)).routes)
    kinds = {"columns", "shared", "scaled weights", "windows", "autograd", "diagonal"}
    assert routes >= kinds and compressed > 1


def test_the_table_is_the_plan() -> None:
    build, shape = NETWORKS["bottleneck"]
    chosen, found = passes(build().double(), torch.randn(shape, dtype=torch.float64))
    (one,) = found
    plan = exact(one, chosen)
    lines = explain_plan(one, plan).splitlines()
    shown = [line.split()[0] for line in lines if "linear" in line]
    nodes = one.graph.sample_nodes
    assert shown == [node.path for node in reversed(nodes) if node.rule.uses]
    for stage in plan.stages:
        assert any(line.endswith(stage.reason) for line in lines)
    assert any("64 columns to 2" in line and "compressed" in line for line in lines)
