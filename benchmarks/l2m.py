"""What L2M adds to training, and how near it is to a diagonal Laplace approximation.

python -m benchmarks.l2m --out docs/measured/l2m.md

A perceptron whose labels are drawn from another of its shape, so that the data can be explained;
trained by AdamW with a rate that falls to zero, in float64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import lapkernels as lk
from benchmarks.document import table, write
from benchmarks.report import duration
from lapkernels.l2m.second_moments import second_moments

BATCH = 50


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/l2m.md"))
    parser.add_argument("--quick", action="store_true", help="few samples and steps, for a test")
    chosen = parser.parse_args(argv)
    count, epochs = (200, 2) if chosen.quick else (5000, 40)
    rows = [row(seed, count, epochs) for seed in range(1 if chosen.quick else 3)]
    head = [
        *("seed", "training", "L2M", "extra", "correlation of log precisions"),
        *("median ratio", "10 % to 90 %"),
    ]
    legend = [
        f"{count} samples of 10 inputs and 3 classes, batches of {BATCH}, {epochs} epochs. Extra "
        "is the time of `from_optimizer` over that of training, which is otherwise unchanged. "
        "Precisions are N S E[g²] of the optimiser and the empirical Fisher's diagonal of all data "
        "at the trained weights, both without prior; ratio is the first over the second, entry by "
        "entry.",
        "",
    ]
    write(chosen.out, "L2M", "python -m benchmarks.l2m", [*legend, *table(head, rows)])


def perceptron() -> nn.Sequential:
    """Smooth and small."""
    return nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 3)).double()


def problem(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Inputs, and labels drawn from a perceptron."""
    torch.manual_seed(seed)
    x, teacher = torch.randn(count, 10).double(), perceptron()
    with torch.no_grad():
        for p in teacher.parameters():
            p.normal_(std=0.7)
        return x, torch.multinomial(teacher(x).softmax(1), 1).squeeze(1)


def row(seed: int, count: int, epochs: int) -> list[str]:
    """One training run: times and agreement."""
    x, y = problem(seed, count)
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=1e-3)
    steps = epochs * count // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    start = time.perf_counter()
    for _ in range(steps):
        part = torch.randint(count, (BATCH,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
        schedule.step()
    middle = time.perf_counter()
    lk.L2M.from_optimizer(optimizer, model, "categorical", data_size=count, batch_size=BATCH)
    training, extra = middle - start, time.perf_counter() - middle
    moments = second_moments(optimizer, dict(model.named_parameters()))
    fisher = lk.diag(model, (x, y), "categorical", method="empirical")
    ours = torch.cat([(count * BATCH * moments[name]).flatten() for name in fisher]).log()
    theirs = torch.cat([value.flatten() for value in fisher.values()]).log()
    correlation = float(torch.corrcoef(torch.stack([ours, theirs]))[0, 1])
    low, median, high = (
        (ours - theirs).exp().quantile(torch.tensor([0.1, 0.5, 0.9]).double()).tolist()
    )
    return [
        *(str(seed), duration(training), duration(extra), f"{extra / training:.3%}"),
        *(f"{correlation:.3f}", f"{median:.2f}", f"{low:.2f} to {high:.2f}"),
    ]


if __name__ == "__main__":
    main()
