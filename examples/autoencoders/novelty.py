"""Inputs unlike the training data, told apart by likelihood, typicality and variances.

Figures 9 and 10 of Laplacian autoencoders (Miani et al., 2022): trained on clothes, shown digits.
Without files it is trained on digits and shown digits on their side.

    python examples/autoencoders/novelty.py --data fashion_mnist.npz --unusual mnist.npz --out x
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import models
import report
import torch
from data import load

from lapkernels.autoencoder import Novelty, areas, novelty, roc

KINDS = ("VAE", "MC-AE", "LAE (post-hoc)", "LAE (online)")
# Images are averaged down to this side, for the sake of time; 28 is that of the files.
SIDE = 16


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments, unusual="arrays of what is not trained on")
    if (chosen.data is None) != (chosen.unusual is None):
        raise SystemExit("--data and --unusual belong together")
    seeds = 1 if chosen.quick else chosen.seeds
    with report.timed():
        images = load(chosen.data, 300 if chosen.quick else 1000, 200, SIDE)
        if chosen.unusual is None:
            unusual = images.new_x.rot90(1, (2, 3))
        else:
            unusual = load(chosen.unusual, 1, 200, SIDE).new_x
        make = models.dense if chosen.quick else models.conv
        recipe = make(1 if chosen.quick else 8, **models.ONLINE)
        figure, axes = report.new_figure(2, len(KINDS), (2.4 * len(KINDS), 4.6))
        names = [field.name for field in fields(Novelty)]
        rows = [["model", *(name.replace("_", " ") for name in names)]]
        for column, kind in enumerate(KINDS):
            found = []
            for seed in range(seeds):
                model = models.KINDS[kind](recipe, images, seed)
                some = images.x[:200]
                inside, outside = (novelty(model, x, some, 20) for x in (images.new_x, unusual))
                found.append(areas(inside, outside))
                if seed == 0:
                    draw(axes[:, column], kind, inside, outside)
            rows.append([kind, *(report.spread([one[name] for one in found]) for name in names)])
        print(f"{images.source}, {len(images.x)} images, {seeds} seeds; areas under the ROC")
        report.save(chosen.out, "novelty", report.table(rows), figure)


def draw(axes: Sequence[object], kind: str, inside: Novelty, outside: Novelty) -> None:
    """ROC curves by both variances above histograms of the output's."""
    curves, counts = axes
    for name in ("latent_variance", "output_variance"):
        curve = roc(getattr(inside, name), getattr(outside, name))
        label = f"{name.split('_')[0]} {curve.area:.2f}"
        curves.plot(curve.false_positive, curve.true_positive, label=label)  # pyright: ignore
    curves.plot([0, 1], [0, 1], "k:", linewidth=0.8)  # pyright: ignore
    curves.set_title(kind, fontsize=9)  # pyright: ignore
    curves.legend(fontsize=7)  # pyright: ignore
    for scores, label in ((inside, "usual"), (outside, "unusual")):
        values = scores.output_variance.clamp_min(1e-12).log10()
        counts.hist(values, bins=30, alpha=0.6, label=label)  # pyright: ignore
    counts.set_xlabel("log10 output variance", fontsize=8)  # pyright: ignore
    counts.legend(fontsize=7)  # pyright: ignore


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
