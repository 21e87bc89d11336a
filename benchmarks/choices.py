"""The exact diagonal with every choice forced, against what the cost model chooses.

python -m benchmarks.choices --out docs/measured/choices.md
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import torch

import lapkernels as lk
from benchmarks.document import table, write
from benchmarks.networks import AUTOENCODERS, CLASSIFIERS, NetworkSize, Problem, make
from benchmarks.report import duration
from lapkernels.ops.serving import Choice, forced

# Sizes at which plain columns still end within seconds.
SIZES = [
    *(*CLASSIFIERS, *AUTOENCODERS, NetworkSize("unet", 32, 1)),
    *(NetworkSize("conv5", 32, 1), NetworkSize("conv5", 64, 1)),
]
# A way that takes so many times the best in its first call is not measured again.
FAR = 3.0
WAYS: dict[str, dict[str, bool]] = {
    f"{kind} {'everywhere' if wanted else 'nowhere'}": {kind: wanted}
    for kind in get_args(Choice)
    for wanted in (True, False)
}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/choices.md"))
    parser.add_argument("--seconds", type=float, default=10.0, help="of rounds for each network")
    parser.add_argument("--networks", nargs="*", help="names of sizes, all by default")
    arguments = parser.parse_args(argv)
    rows = []
    for size in SIZES:
        if arguments.networks is None or str(size) in arguments.networks:
            rows.append(row(str(size), measured(size, arguments.seconds)))
    head = ["network", "chosen", *WAYS, "chosen / best"]
    command = "python -m benchmarks.choices"
    write(arguments.out, "Choices of the exact diagonal", command, table(head, rows))


def measured(size: NetworkSize, seconds: float) -> dict[str, float]:
    """Least seconds of each way: of one call if that is far from the best, else of many rounds."""
    (problem,) = make(size, torch.device("cpu"))
    calls = {"chosen": _call(problem, {}), **{k: _call(problem, w) for k, w in WAYS.items()}}
    calls["chosen"]()
    found = {name: call() for name, call in calls.items()}
    near = {name: calls[name] for name in found if found[name] < FAR * min(found.values())}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in near.items():
            found[name] = min(found[name], call())
    return found


def _call(problem: Problem, choices: Mapping[str, bool]) -> Callable[[], float]:
    """A call that takes its own time."""

    def call() -> float:
        start = time.perf_counter()
        with forced(**choices):
            lk.diag(problem.model, problem.x, problem.likelihood)
        return time.perf_counter() - start

    return call


def row(name: str, found: Mapping[str, float]) -> list[str]:
    """Times of all ways, and that of the chosen one over the best."""
    ratio = found["chosen"] / min(found.values())
    return [name, *(duration(value) for value in found.values()), f"{ratio:.2f}"]


if __name__ == "__main__":
    main()
