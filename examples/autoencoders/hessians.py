"""Which curvature an autoencoder's posterior needs: KFAC, exact or approximate diagonal.

Table 2 of Laplacian autoencoders (Miani et al., 2022): mean squared error of mean reconstructions
and log-likelihood of drawn networks, post-hoc and online. KFAC is measured post-hoc alone, as the
online precision is a diagonal.

    python examples/autoencoders/hessians.py --data mnist.npz --out results
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import models
import report
import torch
from data import Images, load
from torch import Tensor

import lapkernels as lk
from lapkernels.autoencoder import StochasticAutoencoder, drawn_outputs

DRAWS = 50


def scores(outputs: Tensor, model: StochasticAutoencoder, x: Tensor) -> tuple[float, float]:
    """Mean squared error of the mean [N, ...] of draws, summed over pixels, and E[log p(x)]."""
    error = (outputs.mean(0) - x).square().flatten(1).sum(1).mean()
    return float(error), float(model.log_densities(outputs, x).mean())


def kfac(recipe: models.Recipe, images: Images, seed: int) -> tuple[float, float, Tensor]:
    """Post-hoc with Kronecker factors."""
    trained = models.plain(recipe, images, seed)
    la = lk.Laplace(trained.model, trained.likelihood, "kron", "mc")
    la.fit([(x, x) for x in images.x.split(200)]).tune(by="evidence", noise=False)
    weights = la.sample(DRAWS, torch.Generator().manual_seed(seed))
    outputs = drawn_outputs(trained.model, weights, images.new_x)
    return *scores(outputs, trained, images.new_x), outputs[:, :3]


def diagonal(kind: str, method: str) -> Callable[..., tuple[float, float, Tensor]]:
    """Post-hoc or online with a diagonal."""

    def run(recipe: models.Recipe, images: Images, seed: int) -> tuple[float, float, Tensor]:
        own = replace(recipe, online={**recipe.online, "method": method})
        model = models.KINDS[kind](own, images, seed)
        outputs = model.draws(images.new_x, DRAWS).output
        return *scores(outputs, model, images.new_x), outputs[:, :3]

    return run


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
        images = load(chosen.data, 300 if chosen.quick else 1000, 200)
        recipe = models.dense(2 if chosen.quick else 10, **models.ONLINE)
        figure, axes = report.new_figure(len(WAYS), 6, (7, 1.3 * len(WAYS)))
        rows = [["curvature", "squared error of the mean", "log p(x)"]]
        for row, (name, way) in zip(axes, WAYS.items(), strict=True):
            found = [way(recipe, images, seed) for seed in range(seeds)]
            outputs = found[0][2]
            for k in range(3):
                report.show(row[k], outputs.mean(0)[k], title=name if k == 0 else "")
                report.show(row[3 + k], outputs.var(0)[k], "viridis")
            rows.append([name, *(report.spread([one[k] for one in found], 1) for k in (0, 1))])
        print(f"{images.source}, {len(images.x)} images, {seeds} seeds, {DRAWS} draws")
        report.save(chosen.out, "hessians", report.table(rows), figure)


if __name__ == "__main__":
    main()
