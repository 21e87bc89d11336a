"""Inputs unlike the training data, told apart by likelihood, typicality and variances.

Figures 9 and 10 of Laplacian autoencoders (Miani et al., 2022): trained on clothes, shown digits.
With --data alone it is shown scikit-learn's digits, enlarged, next to training images that were
held out: settings were chosen on these. Without files it is trained on digits and shown digits on
their side.

    python examples/autoencoders/novelty.py --data fashion_mnist.npz --unusual mnist.npz --out x
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields, replace

import models
import report
import torch
import torch.nn.functional as F
from data import Images, load
from torch import Tensor

import lapkernels as lk
from lapkernels.autoencoder import (
    Novelty,
    StochasticAutoencoder,
    areas,
    drawn_outputs,
    novelty,
    roc,
)

KINDS = ("LAE (online)", "LAE (post-hoc)", "VAE", "MC-AE")
TRAINED, SHOWN, DRAWS = 4000, 300, 20


def questions(chosen: Namespace) -> tuple[Images, Tensor]:
    """Images to train on and to be shown, and unusual ones."""
    shown = 60 if chosen.quick else SHOWN
    images = load(chosen.data, (240 if chosen.quick else TRAINED) + shown, shown)
    held_out = images.x[-shown:]
    images = replace(images, x=images.x[:-shown], y=images.y[:-shown])
    if chosen.data is None:
        return images, images.new_x.rot90(1, (2, 3))
    if chosen.unusual is None:
        digits = F.interpolate(load(None, shown, 1).x, size=(20, 20), mode="bilinear")
        edge = (images.side - 20) // 2
        return replace(images, new_x=held_out), F.pad(digits, (edge,) * 4)
    return images, load(chosen.unusual, 1, shown).new_x


@torch.no_grad()
def by_part(model: StochasticAutoencoder, usual: Tensor, unusual: Tensor) -> list[str]:
    """Area by the variance of outputs where the encoder alone is drawn, and the decoder alone."""
    if not isinstance(model, lk.LaplacianAutoencoder):
        return ["", ""]
    weights = model.sample(DRAWS)
    encoders, decoders = (
        {name.removeprefix(part): w for name, w in weights.items() if name.startswith(part)}
        for part in ("encoder.", "decoder.")
    )

    def scores(x: Tensor) -> list[Tensor]:
        z = drawn_outputs(model.encoder, encoders, x)
        outputs = model.decoder(z.flatten(0, 1)).unflatten(0, z.shape[:2])
        others = drawn_outputs(model.decoder, decoders, model.encoder(x))
        return [values.var(0).flatten(1).sum(1) for values in (outputs, others)]

    return [f"{roc(a, b).area:.3f}" for a, b in zip(scores(usual), scores(unusual), strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments, unusual="arrays of what is not trained on")
    if chosen.data is None and chosen.unusual is not None:
        raise SystemExit("--unusual needs --data")
    seeds = 1 if chosen.quick else chosen.seeds
    with report.timed():
        images, unusual = questions(chosen)
        recipe = models.whitened(images, 1 if chosen.quick else 6, method="approx", **models.ONLINE)
        figure, axes = report.new_figure(2, len(KINDS), (2.4 * len(KINDS), 4.6))
        names = [field.name for field in fields(Novelty)]
        head = ["model", *(name.replace("_", " ") for name in names)]
        rows = [[*head, "encoders drawn", "decoders drawn"]]
        for column, kind in enumerate(KINDS):
            found, parts = [], ["", ""]
            for seed in range(seeds):
                model = models.KINDS[kind](recipe, images, seed)
                some = images.x[:100]
                inside, outside = (novelty(model, x, some, DRAWS) for x in (images.new_x, unusual))
                found.append(areas(inside, outside))
                print(kind, seed, [round(area, 3) for area in found[-1].values()], flush=True)
                if seed == 0:
                    draw(axes[:, column], kind, inside, outside)
                    parts = by_part(model, images.new_x, unusual)
            areas_of = [report.spread([one[name] for one in found]) for name in names]
            rows.append([kind, *areas_of, *parts])
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
