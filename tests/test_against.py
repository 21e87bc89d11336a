"""Comparing this tree with another commit: a run of one row, and the table."""

from __future__ import annotations

import re

import pytest

from benchmarks.against import Row, table
from benchmarks.general import NETWORKS, QUANTITIES
from tests.programs import printed, run


def test_a_run_leaves_nothing_behind() -> None:
    if not run("git", "rev-parse", "HEAD").stdout:
        pytest.skip("a clone is needed")
    command = "-m benchmarks.against HEAD --networks mlp --quantities exact approx --rounds 1"
    text = printed(*command.split())
    rows = re.findall(r"\| mlp \| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text)
    assert [row[0] for row in rows] == ["exact", "approx"]
    for _, old, new, ratio in rows:
        assert float(ratio) == pytest.approx(float(new) / float(old), rel=0.02)
    assert "lapkernels-against" not in run("git", "worktree", "list").stdout


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
