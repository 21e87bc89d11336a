"""Whole networks, this tree against another commit, run alternately on one machine.

python -m benchmarks.against HEAD~3
python -m benchmarks.against main --networks mlp lenet --quantities exact mc

The other commit is checked out and compiled in a temporary folder. Two processes, one for each,
take turns at the same call, so that what else the machine does hits both alike. A row has the least
time of each over all rounds, their ratio, and the time in units of a forward and backward pass.
Rows above the limit are run again, three times more rounds, before they count.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT, AGAIN = 1.15, 3
# A turn repeats a short call until it lasts this long; one longer than SLOW is left out.
TURN, SLOW = 0.02, 20.0

# The other tree's package is imported first; the networks and this file are those of this tree.
_WORKER = """
import sys
sys.path.insert(0, {package!r})
import lapkernels
sys.path[0] = {root!r}
from benchmarks.against import serve
serve()
"""


class Side:
    """A process that times calls of one tree's package."""

    def __init__(self, package: Path) -> None:
        code = _WORKER.format(package=str(package), root=str(ROOT))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        """The answer to a request."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process ended with {self.process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def serve() -> None:
    """Answer requests on standard input: prepare a call, or time it."""
    import torch

    from benchmarks.general import NETWORKS, QUANTITIES

    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    call: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if "count" in request:
            print(_seconds(call, request["count"]), flush=True)
            continue
        network = NETWORKS[request["network"]]
        call = partial(QUANTITIES[request["quantity"]], *network.problem(), network.likelihood)
        try:
            first = _seconds(call, 1)
            best = first if first > SLOW else min(_seconds(call, 1) for _ in range(3))
            print(json.dumps({"seconds": best}), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


def _seconds(call: Callable[[], object], count: int) -> float:
    """Seconds a call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


@dataclass
class Row:
    """Least seconds of a call, before and now; what it raised if it did."""

    network: str
    quantity: str
    old: float = math.inf
    new: float = math.inf
    words: str = ""

    @property
    def ratio(self) -> float:
        """Time now over time before."""
        return self.new / self.old


def measure(row: Row, old: Side, new: Side, rounds: int) -> None:
    """Some rounds of a row, the two taking turns."""
    request = {"network": row.network, "quantity": row.quantity}
    first = [side.ask(**request) for side in (old, new)]
    row.words = "; ".join(
        f"{name}: {one['error']}" for name, one in zip(("old", "new"), first, strict=True)
        if "error" in one
    )  # fmt: skip
    if row.words:
        return
    seconds = max(one["seconds"] for one in first)
    if seconds > SLOW:
        row.old, row.new = (
            min(a, b["seconds"]) for a, b in zip((row.old, row.new), first, strict=True)
        )
        return
    count = max(1, math.ceil(TURN / seconds))
    for index in range(rounds):
        for side in (old, new) if index % 2 else (new, old):
            found = side.ask(count=count)
            if side is old:
                row.old = min(row.old, found)
            else:
                row.new = min(row.new, found)


@contextmanager
def other_tree(commit: str) -> Iterator[Path]:
    """The package of another commit, compiled, in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="lapkernels-against-"))
    tree = folder / "tree"
    git = ["git", "-C", str(ROOT)]
    try:
        subprocess.run(
            [*git, "worktree", "add", "--detach", "--quiet", str(tree), commit], check=True
        )
        same = subprocess.run([*git, "diff", "--quiet", commit, "--", "csrc", "setup.py"])
        built = [*(ROOT / "lapkernels").glob("_native*.so"), ROOT / "lapkernels" / "_build.json"]
        if same.returncode == 0 and all(path.exists() for path in built):
            for path in built:
                shutil.copy2(path, tree / "lapkernels")
        else:
            command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(command, cwd=tree, check=True)
        yield tree
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def table(rows: Sequence[Row], units: dict[str, float]) -> str:
    """The rows, their geometric mean and the worst."""
    lines = ["| network | quantity | old ms | new ms | new / old | new / (forward + backward) |"]
    lines.append("|---|---|--:|--:|--:|--:|")
    for row in rows:
        if row.words:
            lines.append(f"| {row.network} | {row.quantity} | {row.words[:80]} | | | |")
            continue
        lines.append(
            f"| {row.network} | {row.quantity} | {1e3 * row.old:.3g} | {1e3 * row.new:.3g} "
            f"| {row.ratio:.3f} | {row.new / units[row.network]:.2f} |"
        )
    timed = [row for row in rows if not row.words]
    if timed:
        mean = math.exp(sum(math.log(row.ratio) for row in timed) / len(timed))
        worst = max(timed, key=lambda row: row.ratio)
        lines += ["", f"geometric mean {mean:.3f}, worst {worst.ratio:.3f} "
                  f"({worst.network}, {worst.quantity})"]  # fmt: skip
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    from benchmarks.general import NETWORKS, QUANTITIES

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("commit", help="what to compare with: any name of a commit")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    quantities = [name for name in QUANTITIES if name != "unit"]
    parser.add_argument("--quantities", nargs="+", choices=quantities, default=quantities)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args(argv)
    rows: list[Row] = []
    units: dict[str, float] = {}
    with other_tree(arguments.commit) as tree:
        old, new = Side(tree), Side(ROOT)
        try:
            for network in arguments.networks:
                unit = Row(network, "unit")
                measure(unit, old, new, arguments.rounds)
                units[network] = min(unit.old, unit.new)
                for quantity in arguments.quantities:
                    row = Row(network, quantity)
                    measure(row, old, new, arguments.rounds)
                    for _ in range(AGAIN):
                        if not row.words and row.ratio > LIMIT:
                            measure(row, old, new, arguments.rounds)
                    rows.append(row)
                    print(table([row], units).split("\n")[2], file=sys.stderr, flush=True)
        finally:
            for side in (old, new):
                side.close()
    print(table(rows, units))


if __name__ == "__main__":
    main()
