"""Variational Laplace beside mean-field variational inference and the mode, over tempering β.

A small pre-activation ResNet with softplus on 1000 images of half resolution: Fashion-MNIST and
CIFAR-10, or without files scikit-learn's digits. The table has each method at the β with the lowest
negative log-likelihood of validation images. With --out, finished runs are kept there, and a run
that was stopped goes on where it was.

    python examples/variational_images.py --data fashion_mnist.npz --cifar cifar10.npz --out results
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import options, show, spread, table
from matplotlib import pyplot
from residual import Labelled, Scores, load, network, train
from torch import Tensor

import lapkernels as lk
from lapkernels.variational import Objective

BETAS = {"Fashion-MNIST": (1.0, 0.1, 0.01, 0.001), "CIFAR-10": (1.0, 0.1, 0.01)}
TRAINED = {
    "VL": lk.VariationalLaplace,
    "VI": lk.VariationalInference,
    "MAP": lk.MaximumAPosteriori,
}
SAMPLES, RATE, BATCH = 10, 1e-2, 50
# Of a run: by way of prediction, scores on the validation and on the test images.
Found = dict[str, dict[str, dict[str, float]]]


def fitted(kind: str, beta: float, seed: int, images: Labelled, epochs: int) -> Objective:
    """The network trained by one of the objectives."""
    torch.manual_seed(seed)
    x = images[0]
    objective = TRAINED[kind](network(x.shape[1], x.shape[2]), "categorical", len(x), beta=beta)
    train(objective, objective.param_groups(RATE), images, epochs, BATCH, seed)
    return objective


@torch.no_grad()
def ways(kind: str, objective: Any) -> dict[str, Callable[[Tensor], Tensor]]:
    """How class probabilities [N, C] are predicted: by the mean network, or by draws."""

    def mean(x: Tensor) -> Tensor:
        return objective(x).softmax(1)

    def sampled(x: Tensor) -> Tensor:
        return objective.sampled_outputs(x, SAMPLES).softmax(-1).mean(0)

    if kind == "MAP":
        return {kind: mean}
    return {f"{kind} (mean)": mean, f"{kind} ({SAMPLES} samples)": sampled}


@torch.no_grad()
def scored(kind: str, objective: Any, parts: dict[str, Labelled]) -> Found:
    """All scores of one trained network."""
    return {
        way: {part: asdict(Scores.of(predict(x), y)) for part, (x, y) in parts.items()}
        for way, predict in ways(kind, objective).items()
    }


def runs(
    name: str, file: Path | None, seeds: range, quick: bool, kept: Path | None
) -> dict[str, Found]:
    """Every method, β and seed; those in the file ``kept`` are not done again."""
    known: dict[str, Found] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    images, tested = load(file, 100 if quick else 1000, 200 if quick else 4000)
    half = len(tested[0]) // 2
    parts = {
        "validation": (tested[0][:half], tested[1][:half]),
        "test": (tested[0][half:], tested[1][half:]),
    }
    found = {}
    for seed in seeds:
        for beta in BETAS[name][1:3] if quick else BETAS[name]:
            for kind in TRAINED:
                key = f"{name} {kind} {beta} {seed}"
                if key not in known:
                    objective = fitted(kind, beta, seed, images, 1 if quick else 20)
                    known[key] = scored(kind, objective, parts)
                    if kept:
                        kept.parent.mkdir(parents=True, exist_ok=True)
                        kept.write_text(json.dumps(known, indent=1))
                found[key] = known[key]
    return found


def by_beta(found: dict[str, Found], part: str, metric: str) -> dict[str, dict[float, list[float]]]:
    """Values over the seeds, by way of prediction and β."""
    values: dict[str, dict[float, list[float]]] = {}
    for key, run in found.items():
        beta = float(key.split()[-2])
        for way, scores in run.items():
            values.setdefault(way, {}).setdefault(beta, []).append(scores[part][metric])
    return values


def rows(name: str, found: dict[str, Found]) -> list[list[str]]:
    """Each way of prediction at its best β."""
    lines = []
    for way, over in by_beta(found, "validation", "nll").items():
        best = min(over, key=lambda beta: fmean(over[beta]))
        metrics = (
            by_beta(found, "test", metric)[way][best] for metric in ("nll", "accuracy", "ece")
        )
        lines.append([name, way, f"{best:g}", *(spread(values) for values in metrics)])
    return lines


def draw(everything: dict[str, dict[str, Found]]) -> pyplot.Figure:
    """Test scores over β, a row for each set of images."""
    figure, axes = pyplot.subplots(
        len(everything), 3, figsize=(11, 3.2 * len(everything)), squeeze=False
    )
    for line, (name, found) in zip(axes, everything.items(), strict=True):
        for ax, metric in zip(line, ("nll", "accuracy", "ece"), strict=True):
            for way, over in by_beta(found, "test", metric).items():
                betas = sorted(over)
                ax.plot(betas, [fmean(over[beta]) for beta in betas], "o-", label=way)
            scale = "log" if metric == "nll" else "linear"
            ax.set(xscale="log", yscale=scale, xlabel="β", ylabel=metric, title=name)
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def main() -> None:
    """All runs, one table."""
    parser = options(__doc__, data="Fashion-MNIST as .npz", cifar="CIFAR-10 as .npz")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    chosen = parser.parse_args()
    files = {"Fashion-MNIST": chosen.data, "CIFAR-10": chosen.cifar}
    seeds = range(chosen.seed, chosen.seed + (1 if chosen.quick else chosen.seeds))
    kept = chosen.out and chosen.out / "variational_images.json"
    everything = {
        name: runs(name, file, seeds, chosen.quick, kept)
        for name, file in files.items()
        if file is not None
    }
    if not everything:
        BETAS["digits"] = BETAS["Fashion-MNIST"]
        everything = {"digits": runs("digits", None, seeds, chosen.quick, kept)}
    lines = [line for name, found in everything.items() for line in rows(name, found)]
    header = ["images", "method", "β", "NLL ↓", "accuracy ↑", "ECE ↓"]
    show("variational_images", table(header, lines), draw(everything), chosen.out)


if __name__ == "__main__":
    main()
