"""Laplace fits by two processes of one thread against one process of two threads.

python -m benchmarks.processes --out docs/measured/processes.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import lapkernels as lk
from benchmarks.document import table, write
from benchmarks.networks import CLASSIFIERS, NetworkSize, make, tiny
from benchmarks.units import duration

SIZES = CLASSIFIERS[:1]
BATCHES = 16
FITS: dict[str, dict[str, Any]] = {
    "diag, exact": {"structure": "diag", "method": "exact"},
    "diag, mc": {"structure": "diag", "method": "mc"},
    "kron, mc": {"structure": "kron", "method": "mc"},
    "kron, exact": {"structure": "kron", "method": "exact"},
}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/processes.md"))
    parser.add_argument("--rounds", type=int, default=3, help="starts of either kind, by turns")
    parser.add_argument("--fits", type=int, default=3, help="timed fits in each start")
    parser.add_argument("--quick", action="store_true", help="a tiny network, to try it out")
    parser.add_argument("--worker", nargs=3, metavar=("RANK", "SIZE", "FILE"))
    arguments = parser.parse_args(argv)
    if arguments.worker:
        rank, size, file = arguments.worker
        networks = [tiny(network) for network in SIZES] if arguments.quick else SIZES
        worker(int(rank), int(size), Path(file), networks, arguments.fits)
        return
    one: list[dict[str, Any]] = []
    two: list[dict[str, Any]] = []
    for _ in range(arguments.rounds):
        options = ["--fits", str(arguments.fits), *(["--quick"] if arguments.quick else [])]
        one += [started(1, 2, options)]
        two += [started(2, 1, options)]
    rows = [row(case, one, two) for case in one[0]]
    head = ["network", "fit", "1 process, 2 threads", "2 processes, 1 thread", "ratio", "evidence"]
    text = (
        f"Seconds of `Laplace.fit` on {BATCHES} batches, decompositions included: the least of "
        f"{arguments.rounds} starts by turns with {arguments.fits} fits each, after one that is "
        "not timed. Evidence: relative difference of the two log evidences."
    )
    command = "python -m benchmarks.processes"
    write(
        arguments.out, "Two processes against two threads", command, [text, "", *table(head, rows)]
    )


def row(case: str, one: list[dict[str, Any]], two: list[dict[str, Any]]) -> list[str]:
    """Least seconds of either kind, their ratio, and how much the results differ."""
    seconds = [min(run[case]["seconds"] for run in runs) for runs in (one, two)]
    evidence = [runs[0][case]["evidence"] for runs in (one, two)]
    difference = abs(evidence[1] / evidence[0] - 1)
    ratio = f"{seconds[1] / seconds[0]:.2f}"
    return [*case.split(": "), *(duration(s) for s in seconds), ratio, f"{difference:.0e}"]


def started(size: int, threads: int, options: Sequence[str]) -> dict[str, Any]:
    """What rank 0 of ``size`` processes of so many threads measured."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "store")
        command = [sys.executable, "-m", "benchmarks.processes", *options, "--worker"]
        workers = [
            subprocess.Popen([*command, str(rank), str(size), file], env=environment)
            for rank in range(size)
        ]
        if any([process.wait() for process in workers]):
            raise RuntimeError("a process failed: its error is above")
        return json.loads(Path(file + ".json").read_text())


def worker(rank: int, size: int, file: Path, networks: Sequence[NetworkSize], fits: int) -> None:
    """One process: all fits, timed between meetings of all."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    found: dict[str, Any] = {}
    for network in networks:
        (problem,) = make(network, torch.device("cpu"))
        generator = torch.Generator().manual_seed(0)
        data = [
            (torch.randn(problem.x.shape, generator=generator), problem.y) for _ in range(BATCHES)
        ]
        for name, options in FITS.items():
            la = lk.Laplace(problem.model, problem.likelihood, **options)
            seconds = least(lambda: la.fit(data), fits)  # noqa: B023
            evidence = float(la.log_evidence())
            found[f"{network}: {name}"] = {"seconds": seconds, "evidence": evidence}
    if rank == 0:
        Path(f"{file}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def least(call: Callable[[], object], count: int) -> float:
    """Seconds of the fastest of some calls that all processes begin and end together."""
    found = float("inf")
    for number in range(count + 1):
        dist.barrier()
        start = time.perf_counter()
        call()
        dist.barrier()
        if number:
            found = min(found, time.perf_counter() - start)
    return found


if __name__ == "__main__":
    main()
