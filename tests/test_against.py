"""Comparing this tree with another commit: a run of one row, and the table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.against import Row, table
from benchmarks.general import NETWORKS, QUANTITIES

ROOT = Path(__file__).parents[1]


def test_a_run_leaves_nothing_behind() -> None:
    def git(*words: str) -> str:
        found = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return found.stdout

    if not git("rev-parse", "HEAD"):
        pytest.skip("a clone is needed")
    command = "-m benchmarks.against HEAD --networks mlp --quantities exact approx --rounds 1"
    run = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    rows = re.findall(r"\| mlp \| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", run.stdout)
    assert [row[0] for row in rows] == ["exact", "approx"]
    for _, old, new, ratio in rows:
        assert float(ratio) == pytest.approx(float(new) / float(old), rel=0.02)
    assert "lapkernels-against" not in git("worktree", "list")


def test_table() -> None:
    rows = [Row("mlp", "exact", 2e-3, 1e-3), Row("mlp", "mc", 1e-3, 2e-3), Row("mlp", "kfac")]
    rows[2].words = "old: Refused: no"
    lines = table(rows, {"mlp": 4e-3}).split("\n")
    assert "| mlp | exact | 2 | 1 | 0.500 | 0.25 |" in lines
    assert "old: Refused: no" in lines[4]
    assert lines[-1] == "geometric mean 1.000, worst 2.000 (mlp, mc)"


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_finite_gradients(name: str) -> None:
    network = NETWORKS[name]
    found = QUANTITIES["unit"](*network.problem(), network.likelihood)
    assert all(bool(value.isfinite().all()) and bool(value.any()) for value in found)
