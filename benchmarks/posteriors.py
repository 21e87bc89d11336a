"""Laplace posteriors from data to predictions: fit on a batch, then predict its variances.

python -m benchmarks.posteriors --out docs/measured/posteriors.md

measures both packages by turns, in processor time of one thread: a busy machine changes it little.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lapkernels as lk
from benchmarks import oracles
from benchmarks.document import table, write
from benchmarks.models import family
from benchmarks.networks import CLASSIFIERS, Problem, make, tiny
from benchmarks.report import duration

PRIOR = 1.0
NOTE = (
    "Processor time of one thread, the least of some rounds in which the packages take turns. "
    "Methods are exact, in float32; variances are those of the outputs."
)
# The three convolutions and three dense layers.
SIZES = CLASSIFIERS[:1]


def _diagonal(problem: Problem) -> Tensor:
    """Variances [N, C] under 1 / (h + prior)."""
    variance = {name: 1 / (h + PRIOR) for name, h in oracles.diagonal(problem).items()}
    return oracles.predictive_variance(
        Problem(problem.model, problem.x, problem.y, problem.likelihood, variance)
    )


def _kronecker(problem: Problem) -> Tensor:
    return oracles.kronecker_predictive_variance(problem, PRIOR)


laplace_diag = family("laplace_diag", SIZES, tiny(SIZES[0]), _diagonal, checked=tiny)
laplace_kron = family("laplace_kron", SIZES, tiny(SIZES[0]), _kronecker, checked=tiny)


def _ours(problem: Problem, structure: str) -> Tensor:
    la = lk.Laplace(problem.model, problem.likelihood, structure, "exact", prior=PRIOR)
    return la.fit((problem.x, problem.y)).predict(problem.x).variance


@laplace_diag.method("lapkernels", "ours")
def _(problem: Problem) -> Tensor:
    return _ours(problem, "diag")


@laplace_kron.method("lapkernels", "ours")
def _(problem: Problem) -> Tensor:
    return _ours(problem, "kron")


def _theirs(problem: Problem, structure: str) -> Tensor:
    from laplace import Laplace  # pyright: ignore[reportMissingImports]
    from torch.utils.data import DataLoader, TensorDataset

    la: Any = Laplace(problem.model, "classification", "all", structure, prior_precision=PRIOR)
    la.fit(DataLoader(TensorDataset(problem.x, problem.y), batch_size=len(problem.x)))
    _, covariance = la._glm_predictive_distribution(problem.x)
    return torch.diagonal(covariance, dim1=1, dim2=2).detach()


@laplace_diag.method("laplace-torch", "peer", requires="laplace")
def _(problem: Problem) -> Tensor:
    return _theirs(problem, "diag")


@laplace_kron.method("laplace-torch", "peer", requires="laplace")
def _(problem: Problem) -> Tensor:
    return _theirs(problem, "kron")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/posteriors.md"))
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    (problem,) = make(SIZES[0], torch.device("cpu"))
    packages = {"lapkernels": _ours, "laplace-torch": _theirs}
    rows = []
    for structure in ("kron", "diag"):
        least = dict.fromkeys(packages, float("inf"))
        found: dict[str, Tensor] = {}
        for _ in range(arguments.rounds):
            for name, package in packages.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    start = time.process_time()
                    found[name] = package(problem, structure)
                least[name] = min(least[name], time.process_time() - start)
        ours, theirs = found.values()
        difference = float((ours - theirs).abs().max() / theirs.abs().max())
        ratio = least["laplace-torch"] / least["lapkernels"]
        times = [duration(value) for value in least.values()]
        rows.append([structure, *times, f"{ratio:.1f}×", f"{difference:.0e}"])
        print(rows[-1])
    head = [f"fit and predict, {SIZES[0]}", *packages, "ratio", "difference of variances"]
    command = "python -m benchmarks.posteriors"
    parts = [*table(head, rows), "", NOTE]
    write(arguments.out, "Laplace posteriors from data to predictions", command, parts)


if __name__ == "__main__":
    main()
