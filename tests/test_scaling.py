"""The picture of time and memory against resolution: its cases, slopes and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling
from benchmarks.registry import load


def entry(
    family: str,
    size: dict[str, Any],
    method: str,
    seconds: float,
    *,
    kind: str = "ours",
    case: str = "",
    peak: int | None = 10**6,
    error: float | None = 0.0,
) -> dict[str, Any]:
    """What a benchmark writes of one method at one size."""
    case = case or f"{size['network']}-r{size['resolution']}-n{size['samples']}"
    info = {"family": family, "case": case, "size": size, "method": method, "kind": kind}
    info |= {"error": error, "peak_extra_bytes": peak}
    return {"extra_info": info, "stats": {"min": seconds}}


def conv5(resolution: int) -> dict[str, Any]:
    return {"network": "conv5", "resolution": resolution, "samples": 1}


def run_of(power: float) -> dict[str, Any]:
    """Times that grow as this power of the pixels, and memory that does not grow."""
    entries = [
        entry("diag_approx", conv5(r), "lapkernels", 1e-6 * (r * r) ** power)
        for r in reversed(scaling.RESOLUTIONS)
    ]
    return {"benchmarks": entries, "refused": [], "machine_info": {}}


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_slopes_are_powers_of_the_pixels(power: float) -> None:
    rows = scaling.lines(run_of(power))["diag_approx", "lapkernels"]
    assert [row.size["resolution"] for row in rows] == list(scaling.RESOLUTIONS)
    assert scaling.slope(rows, "seconds") == pytest.approx(power)
    assert scaling.slope(rows, "peak") == pytest.approx(0)
    assert scaling.slope(rows[:2], "seconds") is None


def test_families_of_the_picture_exist() -> None:
    families = load()
    for name, (_, _, other) in scaling.FAMILIES.items():
        assert {"lapkernels", *([other] if other else [])} <= set(families[name].methods)


def test_draws_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "RESULTS", tmp_path)
    scaling.split(run_of(1.0), "diag_approx", scaling.RESOLUTIONS)
    for given in ([], [tmp_path / "whole.json"]):
        for path in given:
            path.write_text(json.dumps(run_of(1.0)))
        scaling.main(["--out", str(tmp_path / "out"), "--draw", *map(str, given)])
        assert (tmp_path / "out" / "scaling.png").read_bytes().startswith(b"\x89PNG")
        assert "| 1.00 |" in (tmp_path / "out" / "scaling.md").read_text()


def test_what_was_refused_is_in_the_table_and_not_tried_at_larger_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "RESULTS", tmp_path)
    why = {"family": "diag_exact", "case": "conv5-r64-n1", "method": "BackPACK"}
    timed = [entry("diag_exact", conv5(32), method, 1.0) for method in ("lapkernels", "BackPACK")]
    first = {"benchmarks": timed, "refused": [{**why, "reason": "too slow: a call takes long"}]}
    scaling.split({**first, "machine_info": {}}, "diag_exact", [32, 64])
    assert scaling.candidates("diag_exact", 32) == ["lapkernels", "BackPACK"]
    assert scaling.candidates("diag_exact", 64) == ["lapkernels"]
    assert scaling.candidates("diag_exact", 256) == ["lapkernels"]
    # A piece that is measured anew keeps the reason.
    again = [entry("diag_exact", conv5(64), "lapkernels", 4.0)]
    run = {"benchmarks": again, "refused": [], "machine_info": {}}
    scaling.split(run, "diag_exact", [64])
    scaling.main(["--out", str(tmp_path / "out"), "--draw"])
    text = (tmp_path / "out" / "scaling.md").read_text()
    assert (
        "| BackPACK | 1 s, 1.0 MB | a call takes long | not tried | not tried | not tried |" in text
    )
    assert "| lapkernels | 1 s, 1.0 MB | 4 s, 1.0 MB | not tried |" in text


@pytest.mark.parametrize("left", ["times", "nothing"])
def test_draws_a_run_of_other_cases_or_without_memory(left: str, tmp_path: Path) -> None:
    data = run_of(1.0)
    for one in data["benchmarks"]:
        one["extra_info"]["peak_extra_bytes"] = None
    data["benchmarks"] = data["benchmarks"] if left == "times" else []
    (tmp_path / "whole.json").write_text(json.dumps(data))
    scaling.main(["--out", str(tmp_path), "--draw", str(tmp_path / "whole.json")])
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert ("lapkernels" in (tmp_path / "scaling.md").read_text()) == (left == "times")
