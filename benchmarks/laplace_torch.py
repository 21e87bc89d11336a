"""One script of a laplace-torch user, with its default backend and with ours.

    python -m benchmarks.laplace_torch --write docs/measured/laplace_torch.md

3c3d (CIFAR-10 shapes, random data, ten classes), classification, all weights. Every row is run in
processes of its own, after a fit of a tiny network that loads code: one process times it, the
minimum over calls, and another reads the peak memory of one call. Rows that were measured before
are kept, so that a run may be split by --task.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.architectures import one_conv_one_dense, three_conv_three_dense
from benchmarks.memory import ALLOCATOR
from lapkernels.demo.memory import peak_extra_memory

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "laplace_torch.json"
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


def child(task: str, backend: str, memory: bool) -> None:
    """Measure one row and print it as JSON."""
    prepared(task, backend, quick=True)()
    call = prepared(task, backend, quick=False)
    if memory:
        print(json.dumps(peak_extra_memory(call)[1]))
        return
    seconds = []
    for _ in range(TASKS[task][3]):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(min(seconds)))


def measured(task: str, backend: str, memory: bool) -> float:
    """A row from a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name if __spec__ else __name__]
    command += ["--child", task, backend, "memory" if memory else "time"]
    environment = {**os.environ, **(ALLOCATOR if memory else {})}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{task} with {backend} failed: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, action="append", help="some rows only")
    parser.add_argument("--write", type=Path, help="file to write the page to")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        task, backend, what = arguments.child
        child(task, backend, what == "memory")
        return
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for task in arguments.task or TASKS:
        rows[task] = [
            [measured(task, backend, memory) for backend in BACKENDS] for memory in (False, True)
        ]
        print(line(task, *rows[task]), flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(rows))
    if arguments.write:
        lines = [line(task, *rows[task]) for task in TASKS if task in rows]
        page = PAGE.format(torch=torch.__version__, table="\n".join([HEAD, *lines]))
        arguments.write.write_text(page)


def line(task: str, seconds: Sequence[float], memory: Sequence[float]) -> str:
    """A row of the table."""
    _, count, batch, _ = TASKS[task]
    cells = [f"{task}, {count} samples in batches of {batch}"]
    cells += [f"{one:.3g} s" for one in seconds] + [f"{seconds[0] / seconds[1]:.3g}×"]
    cells += [f"{one / 1e6:.4g} MB" for one in memory] + [f"{memory[0] / memory[1]:.3g}×"]
    return "| " + " | ".join(cells) + " |"


HEAD = """\
| | default backend | lapkernels | faster | memory, default | lapkernels | less |
|---|--:|--:|--:|--:|--:|--:|"""

PAGE = """\
# laplace-torch with its default backend and with ours

`python -m benchmarks.laplace_torch` on two cores of an AMD EPYC with AVX2, torch {torch}, float32.
fit: `Laplace(model, "classification", "all", structure, backend=...).fit(loader)` of 3c3d, seed 0,
random data. predict: `la(x, link_approx="probit")` against `without_jacobians(la)(x)`. The minimum
of two or three calls, every row in a process of its own; memory is the peak above what was held
before. A Kronecker fit ends with eigendecompositions of all factors, laplace-torch's own in both
columns.

{table}
"""


if __name__ == "__main__":
    main()
