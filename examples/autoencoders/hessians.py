"""Which curvature an autoencoder's posterior needs: KFAC, exact or approximate diagonal.

Table 2 of Laplacian autoencoders (Miani et al., 2022): mean squared error of mean reconstructions
and log-likelihood of drawn networks, post-hoc and online. KFAC is measured post-hoc alone, as the
online precision is a diagonal.

    python examples/autoencoders/hessians.py --data mnist.npz --out results
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import models
import report
import torch
from data import Images, load
from torch import Tensor

import lapkernels as lk
from lapkernels.autoencoder import PlainAutoencoder, StochasticAutoencoder, drawn_outputs

DRAWS = 50


def scores(outputs: Tensor, model: StochasticAutoencoder, x: Tensor) -> tuple[float, float]:
    """Mean squared error of the mean [N, ...] of draws, summed over pixels, and E[log p(x)]."""
    error = (outputs.mean(0) - x).square().flatten(1).sum(1).mean()
    return float(error), float(model.log_densities(outputs, x).mean())


def kfac(recipe: models.Recipe, images: Images, seed: int) -> tuple[float, float, Tensor]:
    """Post-hoc with Kronecker factors."""
    trained = models.plain(recipe, images, seed)
    la = lk.Laplace(trained.model, lk.likelihoods.Gaussian(models.NOISE), "kron", "mc")
    la.fit([(x, x) for x in images.training.split(200)]).tune(by="evidence", noise=False)
    weights = la.sample(DRAWS, torch.Generator().manual_seed(seed))
    outputs = drawn_outputs(trained.model, weights, images.new_x)
    judge = PlainAutoencoder(
        trained.encoder, trained.decoder, likelihood=lk.likelihoods.Gaussian(models.NOISE)
    )
    return *scores(outputs, judge, images.new_x), outputs[:, :3]


def diagonal(kind: str, method: str) -> Callable[..., tuple[float, float, Tensor]]:
    """Post-hoc or online with a diagonal."""

    def run(recipe: models.Recipe, images: Images, seed: int) -> tuple[float, float, Tensor]:
        own = replace(recipe, online={**recipe.online, "method": method})
        model = models.KINDS[kind](own, images, seed)
        outputs = model.draws(images.new_x, DRAWS).output
        return *scores(outputs, model, images.new_x), outputs[:, :3]

    return run


def run(
    way: Callable[..., tuple[float, float, Tensor]],
    recipe: models.Recipe,
    images: Images,
    seed: int,
) -> dict[str, Any]:
    """Error and likelihood, and inputs, means and deviations of three images."""
    error, likelihood, outputs = way(recipe, images, seed)
    shown = (images.new_x[:3], outputs.mean(0), outputs.std(0))
    print(seed, round(error, 2), round(likelihood, 2), flush=True)
    parts = [report.rounded(x[:, 0], 3) for x in shown] if seed == 0 else []
    return {"scores": [error, likelihood], "pictures": parts}


WAYS = {
    "post-hoc, KFAC": kfac,
    "post-hoc, exact": diagonal("LAE (post-hoc)", "exact"),
    "post-hoc, approx": diagonal("LAE (post-hoc)", "approx"),
    "online, exact": diagonal("LAE (online)", "exact"),
    "online, approx": diagonal("LAE (online)", "approx"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments)
    seeds = 1 if chosen.quick else chosen.seeds
    with report.timed():
        images = load(chosen.data, 300 if chosen.quick else 2200, 200)
        likelihood = lk.likelihoods.Gaussian(models.NOISE)
        recipe = models.dense(2 if chosen.quick else 20, likelihood=likelihood)
        kept = report.results(chosen, "hessians")
        figure, axes = report.new_figure(len(WAYS), 9, (10, 1.25 * len(WAYS)))
        rows = [["curvature", "squared error of the mean", "log p(x)"]]
        for row, (name, way) in zip(axes, WAYS.items(), strict=True):
            found = [
                report.once(
                    kept,
                    f"{name}, {images.source}, {len(images.x)} images, seed {seed}",
                    lambda w=way, s=seed: run(w, recipe, images, s),
                )
                for seed in range(seeds)
            ]
            first, top = name == next(iter(WAYS)), torch.tensor(found[0]["pictures"][2]).max()
            for part, title in enumerate(("input", "mean", "σ")):
                for k in range(3):
                    values = torch.tensor(found[0]["pictures"][part][k])
                    limits = {"vmin": 0, "vmax": top, "cmap": "viridis"} if title == "σ" else {}
                    left = name if part == k == 0 else ""
                    if part == 2 and k == 0:
                        left = f"≤ {float(top):.2f}"
                    report.show(row[3 * part + k], values, title if first else "", left, **limits)
            scored = [one["scores"] for one in found]
            rows.append([name, *(report.spread([one[k] for one in scored], 1) for k in (0, 1))])
        report.claim(figure, "Exact and approximate diagonals give the same uncertainty")
        print(f"{images.source}, {len(images.x)} images, {seeds} seeds, {DRAWS} draws")
        report.save(chosen.out, "hessians", report.table(rows), figure)


if __name__ == "__main__":
    main()
