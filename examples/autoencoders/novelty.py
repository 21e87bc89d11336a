"""Inputs unlike the training data, told apart by likelihood, typicality and variances.

Figures 9 and 10 of Laplacian autoencoders (Miani et al., 2022): trained on images of one kind,
shown others, the same inverted, and the same on their side. The online autoencoder is the one of
four lines, with every setting left to its default.

    python examples/autoencoders/novelty.py --data mnist.npz --unusual fashion_mnist.npz --out x
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from statistics import fmean
from typing import Any

import models
import report
import torch
from data import Images, load
from pictures import PALETTE, intervals
from torch import Tensor

from lapkernels.autoencoder import Novelty, areas, novelty

KINDS = ("AE", "VAE", "MC-AE", "LAE (post-hoc)", "LAE (online)")
SCORES = tuple(field.name for field in fields(Novelty))
TRAINED, SHOWN, DRAWS = 11_000, 500, 30


def questions(chosen: Namespace) -> tuple[Images, dict[str, Tensor]]:
    """Images to train on and to be shown, and unusual ones by name."""
    images = load(chosen.data, 300 if chosen.quick else TRAINED, 60 if chosen.quick else SHOWN)
    x = images.new_x
    unusual = {"inverted": 1 - x, "on their side": x.rot90(1, (2, 3))}
    if chosen.unusual is not None:
        other = load(chosen.unusual, 1, len(x))
        unusual = {other.source.partition(",")[0].replace("_", " "): other.new_x, **unusual}
    return images, unusual


def run(
    kind: str, recipe: models.Recipe, images: Images, unusual: dict[str, Tensor], seed: int
) -> dict[str, Any]:
    """Reconstruction error, time of training, areas under the ROC; of seed 0 some pictures."""
    start = time.perf_counter()
    model = models.KINDS[kind](recipe, images, seed)
    seconds = time.perf_counter() - start
    some = images.training[:200]
    mean = model.reconstruct(images.new_x, DRAWS).mean
    inside = novelty(model, images.new_x, some, DRAWS)
    found: dict[str, Any] = {
        "error": float((mean - images.new_x).square().mean()),
        "seconds": round(seconds, 1),
        "epochs": max(len(model.history), 1),
        "areas": {
            name: areas(inside, novelty(model, x, some, DRAWS)) for name, x in unusual.items()
        },
    }
    if seed == 0 and kind == KINDS[-1]:
        pictured = torch.cat([x[:2] for x in (images.new_x, *unusual.values())])
        moments = model.reconstruct(pictured, DRAWS)
        parts = {"input": pictured, "mean": moments.mean, "σ": moments.std}
        found["pictures"] = {name: report.rounded(x[:, 0], 2) for name, x in parts.items()}
    print(kind, seed, f"{found['error']:.4f}", found["areas"], flush=True)
    return found


def draw(found: dict[str, list[dict[str, Any]]], usual: str) -> Any:
    """Areas under the ROC by score, for each kind of unusual images; and what the LAE sees."""
    shown = found[KINDS[-1]][0]["pictures"]
    sets = list(found[KINDS[-1]][0]["areas"])
    figure, axes = report.new_figure(
        2, len(sets), (3.6 * len(sets), 6.6), sharey="row", height_ratios=[1.15, 1]
    )
    for ax, name in zip(axes[0], sets, strict=True):
        values = {
            score.replace("_", " "): [
                [one["areas"][name][score] for one in found[kind]] for kind in KINDS
            ]
            for score in SCORES
        }
        intervals(ax, [kind.replace(" (", "\n(") for kind in KINDS], values)
        ax.axhline(0.5, color=PALETTE[-1], linestyle=":", linewidth=1)
        ax.set_title(f"{usual} against {name}")
        ax.tick_params(axis="x", labelsize=7)
    axes[0, 0].set_ylabel("area under the ROC")
    axes[0, -1].legend(loc="lower left", fontsize=8)
    grid = axes[1, 0].get_gridspec()
    for ax in axes[1]:
        ax.remove()
    inner = grid[1, :].subgridspec(3, len(shown["input"]))
    top = max(max(map(max, image)) for image in shown["σ"])
    titles = [label for name in (usual, *sets) for label in (name, "")]
    for row, (part, color) in enumerate((("input", "gray"), ("mean", "gray"), ("σ", "viridis"))):
        for column, values in enumerate(shown[part]):
            ax = figure.add_subplot(inner[row, column])
            limits = {"vmin": 0, "vmax": 0.7 * top if part == "σ" else 1}
            left = part if column == 0 else ""
            title = titles[column] if row == 0 else ""
            report.show(ax, torch.tensor(values), title, left, cmap=color, **limits)
    ours = {
        name: fmean(one["areas"][name]["output_variance"] for one in found[KINDS[-1]])
        for name in sets
    }
    told = ", ".join(f"{area:.2f} {name}" for name, area in ours.items())
    report.claim(figure, f"Area under the ROC, output variance of {KINDS[-1]}: {told}")
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments, unusual="arrays of what is not trained on")
    if chosen.data is None and chosen.unusual is not None:
        raise SystemExit("--unusual needs --data")
    seeds = 1 if chosen.quick else chosen.seeds
    with report.timed():
        images, unusual = questions(chosen)
        recipe = models.dense(1 if chosen.quick else 12, latent=8)
        kept = report.results(chosen, "novelty")
        found: dict[str, list[dict[str, Any]]] = {}
        for kind in KINDS:
            for seed in range(seeds):
                key = f"{kind}, {images.source}, {len(images.x)} images, seed {seed}"
                one = report.once(
                    kept, key, lambda k=kind, s=seed: run(k, recipe, images, unusual, s)
                )
                found.setdefault(kind, []).append(one)
        rows = [["model", "squared error", "unusual", *(s.replace("_", " ") for s in SCORES)]]
        for kind, runs in found.items():
            for name in unusual:
                values = [
                    report.spread([r["areas"][name][score] for r in runs]) for score in SCORES
                ]
                error = report.spread([r["error"] for r in runs], 4)
                rows.append([kind, error, name, *values])
        print(f"{images.source}, {len(images.x)} images, {seeds} seeds; areas under the ROC")
        usual = images.source.partition(",")[0]
        report.save(chosen.out, "novelty", report.table(rows), draw(found, usual))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
