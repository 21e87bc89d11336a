"""Data in batches of any kind: the same result, to the last bit where numbers are integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapkernels as lk
from lapkernels.curvature import Diagonal
from lapkernels.ops.base import chunks
from tests.curvature import check
from tests.curvature.zoo import ZOO

SAMPLES = 23
METHODS = ("exact", "empirical", "approx", "mixed")


def integers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).double()


def model() -> nn.Module:
    """Integers in, integers out: sums are exact in any order."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    ).double()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(integers(*parameter.shape, seed=seed))
    return model


def batches() -> list[tuple[Tensor, Tensor]]:
    """Seven batches of different sizes."""
    x, y = integers(SAMPLES, 2, 4, 4, seed=10), integers(SAMPLES, 3, seed=11)
    sizes = [5, 1, 4, 4, 2, 6, 1]
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def same(found: Diagonal, other: Diagonal) -> None:
    """To the last bit."""
    assert list(found) == list(other)
    assert all(torch.equal(found[name], value) for name, value in other.items())
    assert found.summary == other.summary


@pytest.mark.parametrize("threshold", [0, 20, 1024])
@pytest.mark.parametrize("method", METHODS)
def test_batches_do_not_matter(method: Any, threshold: int) -> None:
    net, parts = model(), batches()
    options: dict[str, Any] = {"method": method, "threshold": threshold}
    whole = lk.diag(net, joined(parts), **options)
    assert whole.count == SAMPLES and all(value.any() for value in whole.values())
    same(lk.diag(net, parts, **options), whole)
    shards = [lk.diag(net, part, **options) for part in (parts[:2], parts[2:6], parts[6:])]
    assert [shard.count for shard in shards] == [6, 16, 1]
    same(shards[0].merge(shards[1]).merge(shards[2]), whole)
    same(shards[0].merge(shards[1].merge(shards[2])), whole)
    same(shards[2].merge(shards[0]).merge(shards[1]), whole)


@pytest.mark.parametrize("budget", [1, 4096, 1 << 40])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("route", ["auto", "autograd"])
def test_memory_budget_does_not_matter(method: Any, budget: int, route: Any) -> None:
    net, data = model(), joined(batches())
    if route == "autograd" and method in ("approx", "mixed"):
        pytest.skip("a diagonal goes back by rules")
    found = lk.diag(net, data, method=method, memory_budget=budget, route=route)
    same(found, lk.diag(net, data, method=method))


WEIGHTS = [
    id
    for id, network in ZOO.items()
    if network.group in ("tied", "computed-weight") and id not in ("siamese", "module-twice")
]


@pytest.mark.parametrize("route", ["auto", "autograd"])
@pytest.mark.parametrize("id", WEIGHTS)
def test_single_jacobians_are_added_up_in_place(
    id: str, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of large matrices are, of one sample and column at a time."""
    net, x = ZOO[id].make()
    wanted = lk.diag(net, x, route=route)
    variance = {name: torch.rand_like(value) for name, value in wanted.items()}
    spread = lk.predictive_variance(net, x, variance, route=route)
    monkeypatch.setattr(chunks, "CHUNK", 1)
    found = lk.diag(net, x, route=route, memory_budget=1)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)
    again = lk.predictive_variance(net, x, variance, route=route, memory_budget=1)
    torch.testing.assert_close(again, spread, rtol=1e-10, atol=1e-12)


def test_samples_of_columns_add_up() -> None:
    """Each batch draws on: two batches differ from the same batch twice, and both are counted."""
    net, (x, _) = model(), joined(batches())
    generator = torch.Generator().manual_seed(0)
    twice = lk.diag(net, [x, x], "gaussian", "mc", generator=generator)
    generator.manual_seed(0)
    first = lk.diag(net, x, "gaussian", "mc", generator=generator)
    second = lk.diag(net, x, "gaussian", "mc", generator=generator)
    assert twice.count == 2 * SAMPLES
    same(first.merge(second), twice)
    assert not torch.equal(first.vector(), second.vector())


OTHERS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "kron": lambda net, data: lk.kron(net, data, method="exact"),
    **{f"blocks {by}": partial(lk.blocks, by=by) for by in ("layer", "neuron")},
    **{f"full {method}": partial(lk.full, method=method) for method in ("exact", "empirical")},
    **{f"{f.__name__} hessian": partial(f, method="hessian") for f in (lk.diag, lk.full)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_results_add_up(name: str) -> None:
    net, _ = ZOO["conv2d-groups"].make()
    x = torch.randn(14, 1, 4, 4, dtype=torch.float64)
    y = torch.randn(14, 2, dtype=torch.float64)

    def parts(*sizes: int) -> list[tuple[Tensor, Tensor]]:
        return list(zip(x.split(sizes), y.split(sizes), strict=True))

    def flat(found: Any) -> Tensor:
        if isinstance(found, lk.Full):
            return found.matrix
        values = [found.dense(key) for key in found] if name == "kron" else found.values()
        return torch.cat([value.flatten() for value in values])

    run = OTHERS[name]
    whole, batched = run(net, (x, y)), run(net, parts(*[2] * 7))
    shards = [run(net, part) for part in parts(4, 7, 3)]
    merged = shards[0].merge(shards[1]).merge(shards[2])
    assert whole.count == batched.count == merged.count == 14
    for found in (batched, merged):
        check.close(flat(found), flat(whole))


def test_iterables() -> None:
    net, parts = model(), batches()
    whole = lk.diag(net, joined(parts), method="empirical")

    def generate() -> Iterator[tuple[Tensor, Tensor]]:
        yield from parts

    class Loader:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return generate()

    loader = DataLoader(TensorDataset(*joined(parts)), batch_size=4)
    lists = [[x, y] for x, y in parts]
    for data in (generate(), Loader(), loader, parts, tuple(parts), lists, iter(parts)):
        same(lk.diag(net, data, method="empirical"), whole)


def test_inputs_without_labels() -> None:
    net, parts = model(), batches()
    x, _ = joined(parts)
    whole = lk.diag(net, x)
    loader = DataLoader(TensorDataset(x), batch_size=6)
    for data in ([x for x, _ in parts], [(x,) for x, _ in parts], loader, (x, None), [x]):
        same(lk.diag(net, data), whole)


@pytest.mark.parametrize("id", ["two-inputs", "named-inputs"])
def test_several_inputs(id: str) -> None:
    problem = check.problem(ZOO[id], samples=5)
    true = problem.exact()
    x: Any = problem.x
    check.assert_close(lk.diag(problem.model, problem.data), true)

    def part(rows: slice) -> Any:
        named = isinstance(x, dict)
        return {k: v[rows] for k, v in x.items()} if named else tuple(v[rows] for v in x)

    halves = [(part(rows), problem.y[rows]) for rows in (slice(2), slice(2, 5))]
    found = lk.diag(problem.model, halves)
    assert found.count == 5
    check.assert_close(found, true)
    check.assert_close(lk.diag(problem.model, [(x,) for x, _ in halves]), true)


class Batch(dict[str, Any]):
    """A dict of the user's own, as tokenisers give."""


def test_dict_of_the_users_own() -> None:
    problem = check.problem(ZOO["named-inputs"])
    assert isinstance(problem.x, dict)
    check.assert_close(lk.diag(problem.model, Batch(problem.x)), problem.exact())
    check.assert_close(lk.diag(problem.model, [Batch(problem.x)]), problem.exact())


class Whole(nn.Module):
    """A model that takes its dict of inputs whole."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, data: dict[str, Tensor]) -> Tensor:
        return self.net(**data)


def test_dict_that_is_one_argument() -> None:
    problem = check.problem(ZOO["named-inputs"])
    net, x, y = Whole(problem.model), problem.x, problem.y
    for data in ((x, y), [(x, y)], x):
        with pytest.raises(TypeError, match=r"forward of Whole has no arguments scale, image"):
            lk.diag(net, data)
    for data in (((x,), y), [((x,), y)]):
        found = lk.diag(net, data)
        check.assert_close(found, {f"net.{name}": d for name, d in problem.exact().items()})
        prediction = lk.Laplace(net, "regression").fit(data).predict((x,))
        assert prediction.mean.shape == y.shape


@pytest.mark.parametrize(
    "data, error, words",
    [
        (lambda: [], ValueError, "no batch"),
        (lambda: iter(()), ValueError, "no batch"),
        (lambda: DataLoader(TensorDataset(integers(0, 2, 4, 4))), ValueError, "no batch"),
        (lambda: integers(0, 2, 4, 4), ValueError, "no sample"),
        (lambda: [integers(2, 2, 4, 4), integers(0, 2, 4, 4)], ValueError, "no sample"),
        (lambda: 3, TypeError, "int"),
        (lambda: [3], TypeError, "int"),
        (lambda: ["images"], TypeError, "str"),
        (lambda: None, TypeError, "NoneType"),
        (lambda: [(integers(2, 2, 4, 4), integers(2, 3), 1)], ValueError, "3 entries"),
        (lambda: [{}], ValueError, "no tensor"),
        (lambda: torch.tensor(1.0), ValueError, "dimension 0"),
        (lambda: (integers(2, 2, 4, 4), integers(3, 3)), ValueError, "shape"),
        (lambda: (integers(2, 2, 4, 4), integers(2, 4)), ValueError, "shape"),
        (lambda: ((integers(2, 3), integers(3, 3)), None), ValueError, "dimension 0"),
    ],
)
def test_bad_data(data: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        lk.diag(model(), data())


def test_labels_are_missed() -> None:
    net, parts = model(), batches()
    for data in (parts[0][0], [*parts, parts[0][0]], (parts[0][0], None)):
        with pytest.raises(ValueError, match="labels"):
            lk.diag(net, data, method="empirical")


def test_labels_out_of_range() -> None:
    net, (x, _) = model(), joined(batches())
    with pytest.raises(ValueError, match="label"):
        lk.diag(net, (x, torch.full((SAMPLES,), 3)), "categorical")


def test_an_error_says_nothing_wrong_about_earlier_batches() -> None:
    """A loader that breaks raises its own error."""

    def broken() -> Iterator[Tensor]:
        yield batches()[0][0]
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        lk.diag(model(), broken())


def test_merging_what_does_not_belong_together() -> None:
    net, (x, _) = model(), joined(batches())
    exact = lk.diag(net, x)
    with pytest.raises(ValueError, match="method"):
        exact.merge(lk.diag(net, x, method="approx"))
    moved = model()
    with torch.no_grad():
        moved.get_parameter("0.weight")[0, 0, 0, 0] += 1
    with pytest.raises(ValueError, match="model|parameter"):
        exact.merge(lk.diag(moved, x))
    with pytest.raises(ValueError, match="model|parameter"):
        exact.merge(lk.diag(net, x, params="4"))
    wider = nn.Sequential(nn.Flatten(), nn.Linear(32, 3)).double()
    with pytest.raises(ValueError, match="model|parameter"):
        exact.merge(lk.diag(wider, x))


def test_merging_other_likelihoods() -> None:
    net, (x, _) = model(), joined(batches())
    with pytest.raises(ValueError, match="Gaussian.*Poisson"):
        lk.diag(net, x).merge(lk.diag(net, x, "poisson"))


def test_merge_leaves_both_as_they_are() -> None:
    net, parts = model(), batches()
    first, second = lk.diag(net, parts[0]), lk.diag(net, parts[1])
    before = first.vector(), second.vector()
    merged = first.merge(second)
    assert torch.equal(first.vector(), before[0]) and torch.equal(second.vector(), before[1])
    assert merged.count == first.count + second.count
    assert torch.equal(merged.vector(), before[0] + before[1])


def fingerprint(net: nn.Module, **options: Any) -> str:
    return lk.diag(net, integers(1, 2, 4, 4), **options).summary.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p[0, 0].add_(1e-12),
        lambda p: p[0, 0, 0].add_(1.0),
        lambda p: p.zero_(),
        lambda p: p.copy_(p.flip(0)),
        lambda p: p.neg_(),
    ],
)
def test_fingerprint_changes_with_the_parameters(change: Callable[[Tensor], Any]) -> None:
    net = model()
    before = fingerprint(net)
    assert fingerprint(net) == before == fingerprint(model())
    weight = net.get_parameter("0.weight")
    with torch.no_grad():
        change(weight)
    assert fingerprint(net) != before


def test_fingerprint_does_not_change_with_the_layout() -> None:
    net, before = model(), fingerprint(model())
    net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    assert fingerprint(net) == before


def test_fingerprint_changes_with_the_choice() -> None:
    net = model()
    assert fingerprint(net, params="4") != fingerprint(net)


def test_counts_are_of_samples_not_positions() -> None:
    problem = check.problem(ZOO["frames-folded-into-samples"])
    assert lk.diag(problem.model, problem.x).count == len(problem.f)
    with check.quiet():
        alone = check.problem(ZOO["branch-of-each-sample"])
        found = lk.diag(alone.model, alone.x)
    assert found.count == len(alone.f)


def test_summary_is_frozen() -> None:
    found = lk.diag(model(), batches()[0])
    with pytest.raises(AttributeError):
        found.summary.count = 3  # pyright: ignore[reportAttributeAccessIssue]
    assert replace(found.summary, count=9).count == 9
