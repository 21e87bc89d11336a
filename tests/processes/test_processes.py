"""One, two and three processes: the same results, and errors on all of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lapkernels.curvature.results.eigenbasis import shared_out
from tests.programs import ROOT, printed


@pytest.mark.parametrize("size", [1, 2, 3])
def test_processes_work_as_one(size: int, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.processes.worker"]
    workers = [
        subprocess.Popen([*command, str(rank), str(size), str(tmp_path)], cwd=ROOT, env=environment)
        for rank in range(size)
    ]
    try:
        for worker in workers:
            assert worker.wait(timeout=300) == 0
    finally:
        for worker in workers:
            worker.kill()
    # The last one died in the last check.
    for rank in range(size - 1 if size > 1 else 1):
        outcome = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(outcome.pop("done")) > 8
        assert not outcome, f"rank {rank} of {size}\n" + "\n".join(outcome.values())


def test_example_under_torchrun(tmp_path: Path) -> None:
    example = ["examples/many_processes.py", "--quick", "--out", str(tmp_path)]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2"]
    text = printed(*launcher, *example, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    difference = re.search(r"relative difference (\S+)", text)
    assert difference and float(difference.group(1)) < 1e-5
    assert (tmp_path / "many_processes.png").exists()


@pytest.mark.parametrize(
    "costs, count, owners",
    [
        ([5, 4, 3, 2], 2, [0, 1, 1, 0]),
        ([1, 8, 1, 1], 2, [1, 0, 1, 1]),
        ([3], 3, [0]),
        ([2, 7], 1, [0, 0]),
    ],
)
def test_shared_out(costs: list[int], count: int, owners: list[int]) -> None:
    assert shared_out(costs, count) == owners
