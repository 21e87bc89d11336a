"""The benchmarks' machinery: gate, interleaving, memory, and the way from pytest to the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import report
from benchmarks.measure import gate, measure, relative_error
from benchmarks.registry import Family, Method, load

ROOT = Path(__file__).parents[1]
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
    assert outcomes[method.name].refused is None


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
    ("result", "expected"),
    [(torch.ones(2), torch.ones(3)), ([torch.ones(2)], [torch.ones(2)] * 2)],
)
def test_wrong_shapes_are_infinitely_wrong(result: object, expected: object) -> None:
    assert relative_error(result, expected) == float("inf")


def test_nan_is_wrong() -> None:
    error = relative_error([torch.ones(2), torch.full((2,), torch.nan)], [torch.ones(2)] * 2)
    assert not error <= 1.0


@pytest.mark.slow
def test_from_pytest_to_report(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    pytest.importorskip("matplotlib")
    written = tmp_path / "run.json"
    selection = "jacobian_squared_sum or precision_update or (diag_exact and forward)"
    command = [sys.executable, "-m", "pytest", "benchmarks", "--quick", "-q", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "--benchmark-only", f"--benchmark-json={written}", "-k", selection],
        cwd=ROOT,
        capture_output=True,
        text=True,
        # Inside a worker of this suite the plugin would think the run itself is parallel.
        env={name: value for name, value in os.environ.items() if "XDIST" not in name},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(written.read_text())
    for entry in data["benchmarks"]:
        assert 0 < entry["stats"]["min"] < 10
        assert entry["stats"]["rounds"] == 3
        if sys.platform == "linux":
            assert 0 <= entry["extra_info"]["peak_extra_bytes"] < 1e8
    report.main([str(written), "--out", str(tmp_path)])
    text = (tmp_path / "report.md").read_text()
    assert "## jacobian_squared_sum" in text
    assert data["machine_info"]["node"] not in text
    assert "## diag_exact" in text


def test_report_shows_ratios_refusals_and_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    benchmarks = [
        {
            "stats": {"min": seconds * resolution},
            "extra_info": {
                "family": "op",
                "case": f"c{channels}-r{resolution}",
                "size": {"inputs": channels, "resolution": resolution, "columns": 9},
                "method": method,
                "kind": kind,
                "error": 1e-7,
                "peak_extra_bytes": 1000 * resolution,
            },
        }
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
