"""The benchmarks' machinery: gate, interleaving, memory, and the way from pytest to the report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import imported, pieces, report
from benchmarks.gate import STANDARD_ERRORS, gate, mean_error, relative_error, tensors
from benchmarks.measure import measure
from benchmarks.networks import TINY, NetworkSize, tiny
from benchmarks.plots import plot
from benchmarks.registry import Family, Method, load
from benchmarks.rows import Row
from tests.programs import printed
from tests.test_scaling import entry

CPU = torch.device("cpu")
METHODS = [
    pytest.param(family, method, id=f"{family.name}-{method.name}")
    for family in load().values()
    for method in family.methods.values()
]


@dataclass(frozen=True)
class Length:
    length: int

    def __str__(self) -> str:
        return f"n{self.length}"


def doubling() -> tuple[Family, list[str]]:
    """A family with a right, a wrong and a raising method and a unit, and a log of their calls."""
    family = Family(
        "doubling",
        [Length(3)],
        Length(2),
        lambda size, device: (torch.arange(1.0, size.length + 1, device=device),),
        lambda x: 2 * x.double(),
        1e-6,
    )
    log: list[str] = []

    def add(name: str, kind: str, factor: float) -> None:
        @family.method(name, kind)  # pyright: ignore[reportArgumentType]
        def _(x: Tensor) -> Tensor:
            log.append(name)
            return factor * x

    add("right", "ours", 2)
    add("wrong", "torch", 2.001)
    add("also right", "torch", 2)
    add("unit", "unit", 0)

    @family.method("raises", "peer")
    def _(x: Tensor) -> Tensor:
        raise NotImplementedError("no such layer")

    return family, log


@pytest.mark.parametrize(("family", "method"), METHODS)
def test_every_method_is_right_at_the_quick_size(family: Family, method: Method) -> None:
    if not method.available:
        pytest.skip(f"{method.requires} is not installed")
    outcomes, _ = gate(family, family.make(family.quick, CPU), [method])
    refused = outcomes[method.name].refused
    if refused and method.kind == "peer":
        # Other packages may not support something, or be wrong: the report says so.
        pytest.skip(refused)
    assert refused is None


@pytest.mark.parametrize("size", TINY, ids=str)
@pytest.mark.parametrize(
    "name",
    [
        *("diag_exact", "diag_approx", "gradient_and_diag_approx", "diag_empirical"),
        *("kflr", "predictive_variance"),
    ],
)
def test_compositions_and_oracles_agree_on_every_network(name: str, size: NetworkSize) -> None:
    family = load()[name]
    if size.network not in {tiny(other).network for other in family.sizes}:
        pytest.skip("not a case of this family")
    methods = [method for method in family.methods.values() if method.kind == "torch"]
    outcomes, _ = gate(family, family.make(size, CPU), methods)
    assert [outcome.refused for outcome in outcomes.values()] == [None]


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        (lambda t: t, True),
        (lambda t: 2 * t, False),
        (lambda t: t / 2, False),
        (lambda t: t.flatten().roll(1).view_as(t), False),
    ],
    ids=["right", "twice", "half", "moved"],
)
def test_the_mean_of_draws_tells_wrong_from_right(
    change: Callable[[Tensor], Tensor], passes: bool
) -> None:
    family = load()["diag_mc"]
    (problem,) = family.make(family.quick, CPU)
    draw = family.methods["torch.func"].run
    _, away = mean_error(
        lambda: [change(t) for t in tensors(draw(problem))],
        family.oracle(problem),
        family.draws,
        family.tolerance,
    )
    assert (away <= STANDARD_ERRORS) == passes


def test_methods_are_checked_at_a_smaller_size_and_timed_at_the_larger() -> None:
    family, log = doubling()
    family = replace(family, checked=lambda size: Length(2))

    @family.method("only small", "peer")
    def _(x: Tensor) -> Tensor:
        if len(x) > 2:
            raise MemoryError("too large")
        return 2 * x

    methods = [family.methods[name] for name in ("right", "wrong", "only small")]
    outcomes = measure(family, Length(3), methods, device=CPU, rounds=3, seconds=60)
    assert len(outcomes["right"].seconds) == 3
    assert log.count("wrong") == 1
    assert outcomes["only small"].refused == "raised MemoryError: too large"


def test_a_method_may_bring_its_own_oracle_and_limit() -> None:
    family = doubling()[0]

    def limit(size: Length) -> str | None:
        return "too large" if size.length > 2 else None

    @family.method("thrice", "peer", oracle=lambda x: 3 * x.double(), limit=limit)
    def _(x: Tensor) -> Tensor:
        return 3 * x

    method = family.methods["thrice"]
    assert gate(family, family.make(Length(2), CPU), [method])[0]["thrice"].refused is None
    assert method.obstacle(Length(2)) is None and method.obstacle(Length(3)) == "too large"
    assert replace(method, requires="no_such_package").obstacle(Length(2)) == "not installed"


def test_a_call_that_takes_too_long_is_ended() -> None:
    family = doubling()[0]

    @family.method("endless", "peer")
    def _(x: Tensor) -> Tensor:
        while True:
            x = x + 0

    outcomes, calls = gate(family, family.make(Length(2), CPU), [family.methods["endless"]], 0.1)
    assert outcomes["endless"].refused == "too slow: a call takes more than 0 s" and not calls


def test_large_sizes_leave_out_methods_that_need_too_much() -> None:
    small, large = NetworkSize("conv5", 32, 1), NetworkSize("conv5", 256, 4)
    methods = load()["diag_exact"].methods
    named = ("torch.func", "BackPACK", "ASDL", "laplace-torch", "nngeometry")
    limits = [methods[name].limit for name in named]
    assert all(limit and limit(small) is None for limit in limits)
    assert [limit(large) for limit in limits if limit] == [
        "too large: it would hold 5568 GB",
        "too large: it would hold 5566 GB",
        "too slow: 196608 backward passes, one after the other",
        "too large: it would hold 5568 GB",
        "too slow: 196608 backward passes, one after the other",
    ]
    assert methods["lapkernels"].obstacle(large) is None


def test_labels_are_unique_and_every_family_has_something_to_compare_with() -> None:
    for family in load().values():
        labels = [str(size) for size in (*family.sizes, family.quick)]
        assert len(set(labels)) == len(labels), family.name
        kinds = [method.kind for method in family.methods.values()]
        assert "torch" in kinds or "unit" in kinds, family.name


def test_wrong_and_raising_methods_are_not_timed() -> None:
    family, log = doubling()
    methods = list(family.methods.values())
    outcomes = measure(family, Length(3), methods, device=CPU, rounds=4, seconds=60)
    assert str(outcomes["wrong"].refused).startswith("wrong: error 5.0e-04")
    assert outcomes["raises"].refused == "raised NotImplementedError: no such layer"
    assert [len(outcomes[name].seconds) for name in family.methods] == [4, 0, 4, 4, 0]
    assert log.count("wrong") == 1
    assert outcomes["unit"].error is None


def test_rounds_are_interleaved() -> None:
    family, log = doubling()
    methods = [family.methods["right"], family.methods["also right"]]
    outcomes = measure(family, Length(3), methods, device=CPU, rounds=2, seconds=60)
    counts = {name: outcomes[name].iterations for name in outcomes}
    order = ["right", "also right", "also right", "right"]
    rounds = [name for name in order for _ in range(counts[name])]
    assert log[-len(rounds) :] == rounds


def test_in_place_methods_meet_the_gate_with_fresh_arguments() -> None:
    family = load()["precision_update"]
    arguments = family.make(family.quick, CPU)
    before = [t.clone() for t in arguments[0]]
    gate(family, arguments, list(family.methods.values()))
    torch.testing.assert_close(arguments[0], before)


@pytest.mark.parametrize(
    ("result", "expected"), [(torch.ones(2), torch.ones(3)), ([torch.ones(2)], [torch.ones(2)] * 2)]
)
def test_wrong_shapes_are_infinitely_wrong(result: object, expected: object) -> None:
    assert relative_error(result, expected) == float("inf")


def test_nan_is_wrong() -> None:
    error = relative_error([torch.ones(2), torch.full((2,), torch.nan)], [torch.ones(2)] * 2)
    assert not error <= 1.0


def test_from_pytest_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pytest_benchmark")
    pytest.importorskip("matplotlib")
    written = tmp_path / "run.json"
    selection = "jacobian_squared_sum or precision_update or (diag_exact and forward)"
    # Inside a worker of this suite the plugin would think the run itself is parallel.
    for name in [name for name in os.environ if "XDIST" in name]:
        monkeypatch.delenv(name)
    command = ["-m", "pytest", "benchmarks", "--quick", "-q", "-p", "no:xdist"]
    printed(*command, "--benchmark-only", f"--benchmark-json={written}", "-k", selection)
    data = json.loads(written.read_text())
    for row in data["benchmarks"]:
        assert 0 < row["stats"]["min"] < 10
        assert row["stats"]["rounds"] == 3
        if sys.platform == "linux":
            assert 0 <= row["extra_info"]["peak_extra_bytes"] < 1e8
    report.main([str(written), "--out", str(tmp_path)])
    text = (tmp_path / "report.md").read_text()
    assert "## jacobian_squared_sum" in text
    assert data["machine_info"]["node"] not in text
    assert "| quantity | network | forward and backward |" in text


@pytest.mark.parametrize("name", ["squared_derivative", "max_pool", "scaled_product"])
def test_sizes_of_ops_can_be_drawn(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cases = {
        str(size): [Row(name, str(size), "ours", "ours", asdict(size), seconds=1e-3)]
        for size in load()[name].sizes
    }
    swept = any("resolution" in row.size for rows in cases.values() for row in rows)
    found = plot(name, cases, tmp_path)
    assert all(path.stat().st_size for path in found)
    assert swept or not found


def test_report_shows_ratios_refusals_and_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    benchmarks = [
        entry(
            "op",
            {"inputs": channels, "resolution": resolution, "columns": 9},
            method,
            seconds * resolution,
            kind=kind,
            case=f"c{channels}-r{resolution}",
            peak=1000 * resolution,
        )
        for channels in (1, 16)
        for resolution in (32, 64)
        for method, kind, seconds in (("lapkernels", "ours", 1e-5), ("matmul", "torch", 4e-5))
    ]
    refused = [{"family": "op", "case": "c1-r32", "method": "peer", "reason": "wrong: error 1"}]
    data = {"machine_info": {}, "benchmarks": benchmarks, "refused": refused}
    files = report.write(data, tmp_path)
    assert [path.name for path in files] == ["report.md", "op-V9.png"]
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert "| c1-r32 | 320 µs | matmul | 1.28 ms | 0.25 | 0.0 MB | 0.0 MB | 1 | peer |" in lines
    assert "| c1-r32 | peer | wrong: error 1 |  |  |  |  |" in lines


def test_report_has_one_table_of_all_methods_for_networks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    timed = (("peer", "peer", 8e-3), ("pass", "unit", 1e-3), ("lapkernels", "ours", 5e-4))
    benchmarks = [
        entry("diag", size, method, seconds, kind=kind, peak=2_000_000, error=None)
        for size in ({"network": "net", "resolution": r, "samples": 4} for r in (32, 64))
        for method, kind, seconds in timed
        if (method, size["resolution"]) != ("peer", 64)
    ]
    refused = [
        {"family": "diag", "case": "net-r32-n4", "method": "other", "reason": "wrong: error 1"},
        {"family": "diag", "case": "net-r64-n4", "method": "other", "reason": "raised E: no"},
        {"family": "diag", "case": "net-r64-n4", "method": "peer", "reason": "not installed"},
    ]
    data = {"machine_info": {}, "benchmarks": benchmarks, "refused": refused}
    files = report.write(data, tmp_path)
    assert [path.name for path in files] == ["report.md", "diag-net.png"]
    lines = (tmp_path / "report.md").read_text().splitlines()
    head = "| quantity | network | forward and backward | lapkernels | plain torch | other | peer |"
    assert head in lines
    start, ours = "1 ms, 2.0 MB", "0.5×, 2.0 MB"
    row = f"| diag | net-r32-n4 | {start} | {ours} | – | wrong [1] | 8×, 2.0 MB |"
    assert row in lines
    assert f"| diag | net-r64-n4 | {start} | {ours} | – | raises [2] | not installed |" in lines
    assert lines[lines.index("1. other: error 1") + 1] == "2. other: E: no"


def test_pieces_have_every_network_and_quantity() -> None:
    ids = {
        f"{family.name}-{size}"
        for family in load().values()
        for size in family.sizes
        if isinstance(size, NetworkSize)
    }
    patterns = [word for words in pieces.PIECES.values() for word in words.split(" or ")]
    found = {id for id in ids for word in patterns if word in id}
    left = {id for id in ids - found if "conv5" not in id}
    assert not left
    of_conv5, measured = (
        {id.split("-")[0] for id in some if "conv5" in id} for some in (ids, found)
    )
    assert measured == of_conv5


def test_runs_are_joined_unless_they_are_of_different_machines() -> None:
    runs = [
        {"machine_info": {"python_version": "3"}, "benchmarks": [n], "refused": [-n]}
        for n in (1, 2)
    ]
    joined = report.merged(runs)
    assert joined["benchmarks"] == [1, 2] and joined["refused"] == [-1, -2]
    with pytest.raises(ValueError, match="different machines"):
        report.merged([*runs, {**runs[0], "machine_info": {"python_version": "4"}}])


def test_a_page_of_models_says_what_is_right_and_what_is_refused() -> None:
    found = imported.study("torch mlp")
    assert [found["verdicts"][method] for method in imported.METHODS] == [
        *("right", "right", "runs", "runs", "right"),
    ]
    refused = {**found, "verdicts": {**found["verdicts"], "kfac": "refused: too large"}}
    row = imported.rows({"mlp": refused, "gone": {"problem": "no module"}})
    assert row[0][5] == "refused" and row[1][2:] == ["no module"] * len(imported.METHODS)
    assert imported.refusals({"mlp": refused}) == ["- mlp kfac: too large"]
    truth = {"a": torch.tensor([1.0, 2.0])}
    assert imported.error({"a": torch.tensor([1.0, 2.5])}, truth) == 0.25
