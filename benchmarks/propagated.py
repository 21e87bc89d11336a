"""The variance that is passed forward from op to op, against the exact one of the linearised model.

python -m benchmarks.propagated --out docs/measured/propagated.md

Parameters have the variance 1 / (1 + h) with h a sampled diagonal of the batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import lapkernels as lk
from benchmarks.document import table, write
from benchmarks.networks import CLASSIFIERS, NetworkSize, make
from benchmarks.profile import least
from benchmarks.report import duration

SIZES = [
    *(*CLASSIFIERS, NetworkSize("mlp-ae", 28, 4), NetworkSize("conv-ae", 28, 4)),
    *(NetworkSize("unet", 16, 2), NetworkSize("conv5", 16, 4), NetworkSize("conv5", 32, 1)),
]
HEAD = ["network", "median ratio", "10 % to 90 %", "mean error", "correlation", "exact", "passed"]


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/propagated.md"))
    parser.add_argument("--networks", nargs="*", help="names of sizes, all by default")
    arguments = parser.parse_args(argv)
    names = arguments.networks
    rows = [row(size) for size in SIZES if names is None or str(size) in names]
    legend = [
        "Passed is `propagated_variance`, exact is `predictive_variance`, both of all outputs. The "
        "ratio is passed / exact of one output: its median and quantiles; the mean error is "
        "|passed - exact| over the mean exact variance; the correlation is that of the logarithms "
        "over all outputs of the batch.",
        "",
    ]
    command = "python -m benchmarks.propagated"
    write(arguments.out, "Variance passed forward", command, [*legend, *table(HEAD, rows)])


def row(size: NetworkSize) -> list[str]:
    """Errors over all outputs, and times."""
    (problem,) = make(size, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    h = lk.diag(problem.model, problem.x, problem.likelihood, method="mc", generator=generator)
    variance = {name: 1 / (1 + value) for name, value in h.items()}

    def exact() -> Tensor:
        return lk.predictive_variance(problem.model, problem.x, variance)

    def passed() -> Tensor:
        return lk.propagated_variance(problem.model, problem.x, variance)

    a, b = exact().flatten().double(), passed().flatten().double()
    ratio = b / a
    low, middle, high = ratio.quantile(torch.tensor([0.1, 0.5, 0.9]).double()).tolist()
    error = float((b - a).abs().mean() / a.mean())
    both = torch.stack([a.log(), b.log()])
    return [
        *(str(size), f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{error:.0%}"),
        *(f"{float(torch.corrcoef(both)[0, 1]):.2f}", duration(least(exact))),
        duration(least(passed)),
    ]


if __name__ == "__main__":
    main()
