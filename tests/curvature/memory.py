"""Peak extra memory of every function, each case in a process of its own.

`python -m tests.curvature.memory NAME...` prints a JSON line for each case, `--serve` does so for
names that it reads, and `--table` writes the table of all cases into docs/measured/memory.md, or
that of the cases in files of such lines. The process forks for every case before it computes
anything, so that a case starts clean without importing torch again. Blocks of 64 KiB and more are
mappings of their own (MALLOC_ settings of the environment), which leave the resident set when they
are freed.

The bound is twice the activations and twice the parameters. Beside it stands what a caller asked
for, where that is larger than the parameters by nature: Kronecker factors, blocks, covariances.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lapkernels.curvature.quantities.low_rank import BLOCKS, EXTRA
from lapkernels.demo.memory import peak_extra_memory
from tests.curvature.memory_cases import CASES, LARGE, RANK, RUNS
from tests.curvature.memory_networks import NETWORKS

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
TABLE = Path(__file__).parents[2] / "docs" / "measured" / "memory.md"
MIB = 1 << 20
# Vectors that low_rank holds at most, as a multiple of the rank and what it adds: V, H V, and what
# the next block is made of.
KRYLOV = 2 * BLOCKS + 8
# What allocator and new code may take.
SLACK = 6 * MIB


class Results(TorchDispatchMode):
    """Keeps the memory of all results of ops."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.known = {_storage(tensor).data_ptr() for tensor in known}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor) and _storage(tensor).data_ptr() not in self.known:
                self.storages[_storage(tensor).data_ptr()] = _storage(tensor)
        return out


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def activations(model: nn.Module, x: Tensor) -> int:
    """Bytes of the results of all ops of a forward pass."""
    with torch.no_grad(), Results([x, *model.parameters()]) as results:
        model(x)
    return sum(storage.nbytes() for storage in results.storages.values())


def size_of(value: Any) -> int:
    """Bytes of the tensors in a result."""
    found: dict[int, int] = {}

    def visit(one: Any) -> None:
        if isinstance(one, Tensor):
            found[_storage(one).data_ptr()] = _storage(one).nbytes()
        elif is_dataclass(one):
            for field in fields(one):
                visit(getattr(one, field.name))
        elif isinstance(one, Mapping):
            for entry in one.values():
                visit(entry)

    visit(value)
    return sum(found.values())


def measure(name: str) -> dict[str, Any]:
    """Bytes of the peak and of what the bound is made of."""
    network, outputs, run = name.split(" ", 2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dense = network in ("unet", "decoder")

    def call(model: nn.Module, x: Tensor) -> Any:
        y = torch.zeros(x.shape[0], dtype=torch.int64)
        if dense:
            return RUNS[run](model, x, torch.zeros(x.shape[0], 1, *x.shape[2:]), "gaussian")
        return RUNS[run](model, x, y, "categorical")

    build = partial(NETWORKS[network], int(outputs))
    call(*build(True))
    model, x = build(False)
    kept = activations(model, x)
    parameters = sum(p.nbytes for p in model.parameters())
    start = time.process_time()
    result, peak = peak_extra_memory(lambda: call(model, x))
    seconds = time.process_time() - start
    extra = size_of(result) if run.startswith(LARGE) else 0
    if run.startswith("low_rank"):
        extra = KRYLOV * (RANK + EXTRA) * parameters
    if network == "tied":
        # Autograd's gradient of a weight with two uses, which a first call is compared with: both
        # parts, and their sum in a third.
        extra = (2 if run == "ggn_product" else 1) * parameters
    bound = 2 * kept + 2 * parameters + extra
    row = {"peak": peak, "bound": bound, "activations": kept, "parameters": parameters}
    return {"name": name, **row, "result": extra, "seconds": seconds}


def in_child(name: str) -> None:
    """Measure in a fork, and print."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            row = measure(name)
        except BaseException:
            row = {"name": name, "error": traceback.format_exc()}
        print(json.dumps(row), flush=True)
        os._exit(0)
    os.waitpid(child, 0)


@dataclass
class Server:
    """A process that measures on request."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls) -> Server:
        """Import torch there."""
        return cls(
            subprocess.Popen(
                [sys.executable, "-m", "tests.curvature.memory", "--serve"],
                cwd=Path(__file__).parents[2],
                env={**os.environ, **ALLOCATOR},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def measure(self, name: str) -> dict[str, Any]:
        """Bytes of one case."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        row = json.loads(self.process.stdout.readline())
        if "error" in row:
            raise RuntimeError(row["error"])
        return row


HEAD = """\
# Peak memory

MiB by which the resident set peaks above its size before the call, on one thread of a CPU, with
torch {torch}. `python -m tests.curvature.memory --table` writes this page.

The bound is twice the activations and twice the parameters, and the result where that is larger
than the parameters by nature (Kronecker factors, blocks, matrices, covariances, and the vectors
that `low_rank` works with). A product with a weight of two uses may have twice the parameters more:
torch's own backward pass holds such a weight three times, and the sum is beside it.

Tests hold peaks to their bounds and {slack} MiB, for the allocator and newly loaded code. Networks
that are smaller than these may have 16 MiB of columns, so that they are not carried column by
column. The last column has the peak over the bound.

| network | outputs | function | activations | parameters | result | bound | peak | ratio |
|---|---:|---|---:|---:|---:|---:|---:|---:|
"""


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """All cases in Markdown."""
    lines = HEAD.format(torch=torch.__version__, slack=SLACK // MIB).splitlines()
    keys = ("activations", "parameters", "result", "bound", "peak")
    for row in rows:
        network, outputs, run = row["name"].split(" ", 2)
        sizes = " | ".join(f"{row[key] / MIB:.1f}" for key in keys)
        ratio = row["peak"] / row["bound"]
        lines.append(f"| {network} | {outputs} | {run} | {sizes} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def _read(files: Iterable[str]) -> list[dict[str, Any]]:
    lines = [line for file in files for line in Path(file).read_text().splitlines()]
    return [json.loads(line) for line in lines]


def main(arguments: list[str]) -> None:
    """Serve, make the table, or measure what is named."""
    if arguments[:1] == ["--table"]:
        names = [name for name in CASES if not name.endswith("generous")]
        rows = _read(arguments[1:]) if arguments[1:] else map(Server.start().measure, names)
        known = {row["name"]: row for row in rows}
        text = table(known[name] for name in names if name in known)
        missing = [name for name in names if name not in known]
        text += f"\nNot in this run: {', '.join(missing)}.\n" if missing else ""
        TABLE.write_text(text)
        return
    names = map(str.strip, sys.stdin) if arguments == ["--serve"] else arguments
    for name in names:
        in_child(name)


if __name__ == "__main__":
    main(sys.argv[1:])
