"""The commands that write measured documents."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from benchmarks.networks import NetworkSize


@pytest.mark.parametrize("name", ["choices", "profile", "propagated"])
def test_documents_are_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    size = NetworkSize("tiny-mlp-ae", 4, 6)
    monkeypatch.setattr(module, "SIZES", [size])
    if name == "profile":
        monkeypatch.setattr(module, "least", lambda call, seconds=1.0: (call(), 1.0)[1])
    if name == "propagated":
        monkeypatch.setattr(module, "least", lambda call: 1.0)
    out = tmp_path / "made.md"
    module.main(["--out", str(out), *(["--seconds", "0"] if name == "choices" else [])])
    text = out.read_text()
    assert f"python -m benchmarks.{name}" in text and f"| {size} |" in text


@pytest.mark.parametrize(
    ("name", "arguments", "holds"),
    [
        ("variational", ["steps", "--seconds", "0"], "| difference route |"),
        ("variational", ["errors"], "(default)"),
        ("l2m", [], "correlation of log precisions"),
        ("calibration", [], "| last, held out |"),
    ],
)
def test_posteriors_are_measured(
    name: str, arguments: list[str], holds: str, tmp_path: Path
) -> None:
    out = tmp_path / "made.md"
    module = importlib.import_module(f"benchmarks.{name}")
    if name == "calibration":
        pytest.importorskip("sklearn")
        arguments = ["--cache", str(tmp_path)]
    module.main([*arguments, "--quick", "--out", str(out)])
    assert f"python -m benchmarks.{name}" in out.read_text() and holds in out.read_text()


def test_posteriors_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("laplace")
    from benchmarks import posteriors

    threads = torch.get_num_threads()
    monkeypatch.setattr(posteriors, "SIZES", [NetworkSize("tiny", 8, 6)])
    out = tmp_path / "made.md"
    posteriors.main(["--out", str(out), "--rounds", "1"])
    torch.set_num_threads(threads)
    rows = [line.split("|") for line in out.read_text().splitlines() if line.startswith("| ")]
    # The last cell is how far the packages are apart.
    assert [row[1].strip() for row in rows[2:]] == ["kron", "diag"]
    assert all(float(row[-2]) < 1e-4 for row in rows[2:])


def test_processes_are_compared(tmp_path: Path) -> None:
    from benchmarks import processes

    out = tmp_path / "made.md"
    processes.main(["--out", str(out), "--quick", "--rounds", "1", "--fits", "1"])
    rows = [line.split("|") for line in out.read_text().splitlines() if ", mc |" in line]
    # Float32 sums in another order.
    assert len(rows) == 2 and all(float(row[-2]) < 1e-5 for row in rows)
