"""Variational Laplace beside mean-field variational inference and the mode, over tempering β.

A small pre-activation ResNet with softplus on 1000 images of half resolution: Fashion-MNIST and
CIFAR-10, or without files scikit-learn's digits. Each method is trained over β, those with spreads
also over the scale of the prior, since a small β weakens the prior with all else. The first table
has each method at the setting with the lowest negative log-likelihood of validation images; test
images choose nothing. With --out, finished runs are kept there, and a run that was stopped goes on.

    python examples/variational_images.py --data fashion_mnist.npz --cifar cifar10.npz --out results
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import once, options, show, spread, table
from matplotlib import pyplot
from residual import Labelled, Scores, load, mean_log_ratio, network, train
from torch import Tensor

import lapkernels as lk
from lapkernels.variational import Objective

SAMPLES, BATCH = 10, 50
METRICS = ("nll", "accuracy", "ece")
METHODS: dict[str, Callable[..., Objective]] = {
    # By the faster route; variational_bound.py has both.
    "VL": partial(lk.VariationalLaplace, route="difference"),
    "VI": lk.VariationalInference,
    "MAP": lk.MaximumAPosteriori,
}
# By the scale of the prior's standard deviations s; for the mode only β / s² matters.
Betas = dict[float, tuple[float, ...]]
SPREAD: Betas = {1.0: (1.0, 0.1, 0.03, 0.01), 0.3: (0.1, 0.01)}
MODE: Betas = {1.0: (1.0, 0.3, 0.1, 0.01)}
BETAS = {"VL": SPREAD, "VI": SPREAD, "MAP": MODE}
# Fewer, for the time they take.
FEW_SPREAD: Betas = {1.0: (0.1, 0.03, 0.01), 0.3: (0.01,)}
FEW_BETAS = {"VL": FEW_SPREAD, "VI": FEW_SPREAD, "MAP": MODE}


@dataclass(frozen=True)
class Setting:
    """How a network is trained."""

    kind: str
    beta: float
    scale: float
    epochs: int
    width: int
    rate: float

    def key(self, name: str, count: int, seed: int) -> str:
        """Unlike that of any other run."""
        return (
            f"{name} {count} {self.kind} beta={self.beta:g} scale={self.scale:g} "
            f"epochs={self.epochs} width={self.width} rate={self.rate:g} seed={seed}"
        )


# Of a run: by way of prediction, scores on each set of images; and the mean of log σ/s.
Run = dict[str, Any]


def fitted(setting: Setting, seed: int, images: Labelled) -> Objective:
    """The network trained by one of the objectives."""
    torch.manual_seed(seed)
    x = images[0]
    model = network(x.shape[1], x.shape[2], setting.width)
    usual = lk.MaximumAPosteriori(model, "categorical", len(x)).prior_std
    objective = METHODS[setting.kind](
        model, "categorical", len(x), beta=setting.beta,
        prior_std={name: setting.scale * s for name, s in usual.items()},
    )  # fmt: skip
    train(objective, objective.param_groups(setting.rate), images, setting.epochs, BATCH, seed)
    return objective


def ways(kind: str, objective: Any) -> dict[str, Callable[[Tensor], Tensor]]:
    """How class probabilities [N, C] are predicted: by the mean network, or by draws."""

    def mean(x: Tensor) -> Tensor:
        return objective(x).softmax(1)

    def sampled(x: Tensor) -> Tensor:
        return objective.sampled_outputs(x, SAMPLES).softmax(-1).mean(0)

    if kind == "MAP":
        return {kind: mean}
    return {f"{kind} (mean)": mean, f"{kind} ({SAMPLES} samples)": sampled}


def run(setting: Setting, seed: int, parts: dict[str, Labelled]) -> Run:
    """Train once and score."""
    objective = fitted(setting, seed, parts["train"])
    with torch.no_grad():
        scores = {
            way: {part: asdict(Scores.of(predict(x), y)) for part, (x, y) in parts.items()}
            for way, predict in ways(setting.kind, objective).items()
        }
    return {"scores": scores, "log σ/s": mean_log_ratio(objective)}


def runs(
    name: str, file: Path | None, seeds: range, chosen: Any, kept: Path | None
) -> dict[Setting, list[Run]]:
    """Every setting, over the seeds."""
    counts = (100, 100, 100) if chosen.quick else (1000, 1000, 2000)
    few = chosen.quick or name == "CIFAR-10"
    sets = load(file, *counts)
    parts: dict[str, Labelled] = dict(zip(("train", "validation", "test"), sets, strict=True))
    settings = [
        Setting(kind, beta, scale, 1 if chosen.quick else chosen.epochs, chosen.width, chosen.rate)
        for kind, by_scale in (FEW_BETAS if few else BETAS).items()
        for scale, betas in by_scale.items()
        for beta in betas
    ]
    found: dict[Setting, list[Run]] = {setting: [] for setting in settings}
    for seed in seeds:
        for setting in settings:
            key = setting.key(name, len(sets[0][0]), seed)
            found[setting].append(once(kept, key, partial(run, setting, seed, parts)))
    return found


def values(found: list[Run], way: str, part: str, metric: str) -> list[float]:
    """Over the seeds."""
    return [one["scores"][way][part][metric] for one in found]


def best_rows(name: str, found: dict[Setting, list[Run]]) -> list[list[str]]:
    """Each way of prediction, at the setting that validation images choose."""
    lines = []
    for way in {way: None for found_of in found.values() for way in found_of[0]["scores"]}:
        of_way = {s: found_of for s, found_of in found.items() if way in found_of[0]["scores"]}
        best = min(of_way, key=lambda s: fmean(values(of_way[s], way, "validation", "nll")))
        scores = (spread(values(of_way[best], way, "test", metric)) for metric in METRICS)
        lines.append([name, way, f"{best.beta:g}", f"{best.scale:g}", *scores])
    return lines


def all_rows(name: str, found: dict[Setting, list[Run]]) -> list[list[str]]:
    """Each setting: the networks of the means, and how far σ went."""
    lines = []
    for s, found_of in sorted(found.items(), key=lambda item: (item[0].kind, item[0].scale)):
        way = next(iter(found_of[0]["scores"]))
        nll = [
            f"{fmean(values(found_of, way, part, 'nll')):.3f}"
            for part in ("train", "validation", "test")
        ]
        ece = f"{fmean(values(found_of, way, 'test', 'ece')):.3f}"
        ratio = "" if s.kind == "MAP" else f"{fmean(one['log σ/s'] for one in found_of):.2f}"
        lines.append([name, way, f"{s.scale:g}", f"{s.beta:g}", *nll, ece, ratio])
    return lines


def draw(everything: dict[str, dict[Setting, list[Run]]]) -> pyplot.Figure:
    """Test scores over β, a row for each set of images; a dashed line for the narrow prior."""
    figure, axes = pyplot.subplots(
        len(everything), 3, figsize=(11, 3.2 * len(everything)), squeeze=False
    )
    for line, (name, found) in zip(axes, everything.items(), strict=True):
        curves = {(way, s.scale) for s, of in found.items() for way in of[0]["scores"]}
        colors = {way: f"C{i}" for i, way in enumerate(sorted({way for way, _ in curves}))}
        for ax, metric in zip(line, METRICS, strict=True):
            for way, scale in sorted(curves, key=lambda curve: (curve[0], -curve[1])):
                points = sorted(
                    (s.beta, fmean(values(of, way, "test", metric)))
                    for s, of in found.items()
                    if s.scale == scale and way in of[0]["scores"]
                )
                ax.plot(
                    *zip(*points, strict=True), "o-" if scale == 1 else "x--",
                    color=colors[way], label=way if scale == 1 else f"{way}, {scale:g} s",
                )  # fmt: skip
            scale = "log" if metric == "nll" else "linear"
            ax.set(xscale="log", yscale=scale, xlabel="β", ylabel=metric, title=name)
    axes[0, 0].legend(fontsize=6)
    figure.tight_layout()
    return figure


def main() -> None:
    """All runs, two tables."""
    parser = options(__doc__, data="Fashion-MNIST as .npz", cifar="CIFAR-10 as .npz")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=8, help="channels of the first stage")
    parser.add_argument("--rate", type=float, default=1e-2, help="learning rate of the weights")
    chosen = parser.parse_args()
    files = {"Fashion-MNIST": chosen.data, "CIFAR-10": chosen.cifar}
    if not any(files.values()):
        files = {"digits": None}
    seeds = range(chosen.seed, chosen.seed + (1 if chosen.quick else chosen.seeds))
    kept = chosen.out and chosen.out / "variational_images.json"
    everything = {
        name: runs(name, file, seeds, chosen, kept)
        for name, file in files.items()
        if file is not None or name == "digits"
    }
    best = [row for name, found in everything.items() for row in best_rows(name, found)]
    every = [row for name, found in everything.items() for row in all_rows(name, found)]
    tables = [
        table(["images", "method", "β", "scale of s", "NLL ↓", "accuracy ↑", "ECE ↓"], best),
        table(
            ["images", "method", "scale of s", "β", "train NLL", "validation NLL", "test NLL",
             "test ECE", "mean log σ/s"],
            every,
        ),
    ]  # fmt: skip
    show("variational_images", "\n\n".join(tables), draw(everything), chosen.out)


if __name__ == "__main__":
    main()
