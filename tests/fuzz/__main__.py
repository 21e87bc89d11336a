"""Run random models and report: `python -m tests.fuzz --seed 0 --count 500 --kind complex,hook`."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext

import torch

from lapkernels.curvature.passes.self_check import unchecked
from tests.fuzz.run import run
from tests.fuzz.steps import STEPS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--route", choices=["auto", "autograd"], default="auto")
    parser.add_argument("--kind", default="", help=f"more often some of {', '.join(STEPS)}")
    words = "without the comparison of recorded passes with autograd, which hides mistakes"
    parser.add_argument("--unchecked", action="store_true", help=words)
    given = parser.parse_args()
    torch.set_num_threads(1)
    kinds = tuple(filter(None, given.kind.split(",")))
    if unknown := set(kinds) - set(STEPS):
        parser.error(f"no such kind: {', '.join(unknown)}")
    with unchecked() if given.unchecked else nullcontext():
        report = run(given.seed, given.count, given.route, kinds, show=50)
    print(report)
    return int(bool(report.causes))


if __name__ == "__main__":
    sys.exit(main())
