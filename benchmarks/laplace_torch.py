"""One script of a laplace-torch user, with its default backend and with ours.

    python -m benchmarks.laplace_torch --write docs/measured/laplace_torch.md

3c3d (CIFAR-10 shapes, random data, ten classes), classification, all weights. Every row is run in
processes of its own, after a fit of a tiny network that loads code: one process times it, the
minimum over calls, and another reads the peak memory of one call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.architectures import one_conv_one_dense, three_conv_three_dense
from benchmarks.memory import ALLOCATOR
from lapkernels.demo.memory import peak_extra_memory

ROOT = Path(__file__).parents[1]
BACKENDS = ("default", "lapkernels")
# Structure, samples, batch size, and how often it is called.
TASKS: dict[str, tuple[str, int, int, int]] = {
    "fit diag": ("diag", 32, 16, 2),
    "fit kron": ("kron", 512, 64, 2),
    "predict diag": ("diag", 16, 16, 3),
    "predict kron": ("kron", 16, 16, 3),
}


def prepared(task: str, backend: str, quick: bool) -> Callable[[], Any]:
    """The user's script: what is measured, with everything before it done."""
    from laplace import Laplace
    from laplace.curvature import CurvlinopsGGN

    from lapkernels.integrations import LaplaceTorchGGN, without_jacobians

    structure, count, batch, _ = TASKS[task]
    count, batch = (4, 2) if quick else (count, batch)
    torch.manual_seed(0)
    model = (one_conv_one_dense() if quick else three_conv_three_dense()).eval()
    side, classes = (8, 3) if quick else (32, 10)
    x, y = torch.randn(count, 3, side, side), torch.randint(classes, (count,))
    loader = DataLoader(TensorDataset(x, y), batch_size=batch)
    fitting = task.startswith("fit")
    # The posterior that predicts is ours in both rows: only the predictions differ.
    chosen = LaplaceTorchGGN if backend == "lapkernels" or not fitting else CurvlinopsGGN

    def fit() -> Any:
        la = Laplace(model, "classification", "all", structure, backend=chosen)
        la.fit(loader)
        return la

    if fitting:
        return fit
    la: Any = fit()
    if backend == "default":
        state = la.state_dict()
        la = Laplace(model, "classification", "all", structure, backend=CurvlinopsGGN)
        la.load_state_dict(state)
    else:
        la = without_jacobians(la)
    return lambda: la(x, link_approx="probit")


def child(task: str, backend: str, what: str) -> None:
    """Measure one number and print it as JSON."""
    prepared(task, backend, quick=True)()
    call = prepared(task, backend, quick=False)
    if what == "memory":
        print(json.dumps(peak_extra_memory(call)[1]))
        return
    clock = time.process_time if what == "processor" else time.perf_counter
    seconds = []
    for _ in range(TASKS[task][3]):
        start = clock()
        call()
        seconds.append(clock() - start)
    print(json.dumps(min(seconds)))


def measured(task: str, backend: str, what: str) -> float:
    """A number from a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.laplace_torch"]
    command += ["--child", task, backend, what]
    environment = {**os.environ, **(ALLOCATOR if what == "memory" else {})}
    if what == "processor":
        environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{task} with {backend} failed: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, action="append", help="some rows only")
    parser.add_argument(
        "--busy",
        action="store_true",
        help="for a machine with other work: processor time of one thread, four rows at a time",
    )
    parser.add_argument("--write", type=Path, help="file to write the page to")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    clock = "processor" if arguments.busy else "time"
    tasks = arguments.task or list(TASKS)
    jobs = [
        (task, backend, what)
        for task in tasks
        for what in (clock, "memory")
        for backend in BACKENDS
    ]
    with ThreadPoolExecutor(4 if arguments.busy else 1) as pool:
        found = list(pool.map(lambda job: measured(*job), jobs))
    lines = [HEAD, *(line(task, found[4 * n : 4 * n + 4]) for n, task in enumerate(tasks))]
    print("\n".join(lines))
    if arguments.write:
        how = HOW[arguments.busy]
        page = PAGE.format(torch=torch.__version__, how=how, table="\n".join(lines))
        arguments.write.write_text(page)


def line(task: str, numbers: Sequence[float]) -> str:
    """A row of the table, of two times and two memories."""
    _, count, batch, _ = TASKS[task]
    a, b, m, n = numbers
    cells = [f"{task}, {count} samples in batches of {batch}", f"{a:.3g} s", f"{b:.3g} s"]
    cells += [f"{a / b:.3g}×", f"{m / 1e6:.4g} MB", f"{n / 1e6:.4g} MB", f"{m / n:.3g}×"]
    return "| " + " | ".join(cells) + " |"


HEAD = """\
| | default backend | lapkernels | faster | memory, default | lapkernels | less |
|---|--:|--:|--:|--:|--:|--:|"""

HOW = {
    False: "Two threads, wall clock.",
    True: "The machine was busy with other work: times are processor time of one thread.",
}

PAGE = """\
# laplace-torch with its default backend and with ours

`python -m benchmarks.laplace_torch` on two cores of an AMD EPYC with AVX2, torch {torch}, float32.
fit: `Laplace(model, "classification", "all", structure, backend=...).fit(loader)` of 3c3d, seed 0,
random data. predict: `la(x, link_approx="probit")` against `without_jacobians(la)(x)`. The minimum
of two or three calls, every row in a process of its own; memory is the peak above what was held
before. A Kronecker fit ends with eigendecompositions of all factors, laplace-torch's own in both
columns. {how}

{table}
"""


if __name__ == "__main__":
    main()
