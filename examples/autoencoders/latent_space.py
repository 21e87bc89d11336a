"""Where decoders are unsure, in the latent space of a VAE and of Laplacian autoencoders.

Figures 1 and 8 of Laplacian autoencoders (Miani et al., 2022): latent means over a heat map of the
decoder's standard deviation, and mean and variance of reconstructions.

    python examples/autoencoders/latent_space.py --data mnist.npz --out results
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import models
import report
import torch
from data import Images, load
from torch import Tensor

from lapkernels.autoencoder import StochasticAutoencoder

KINDS = ("VAE", "LAE (post-hoc)", "LAE (online)")


def grid(z: Tensor, points: int) -> tuple[Tensor, tuple[float, float, float, float]]:
    """Points [points², 2] around latent means, half as far again on each side."""
    low, high = z.min(0).values, z.max(0).values
    low, high = low - 0.5 * (high - low), high + 0.5 * (high - low)
    a, b = (torch.linspace(float(low[k]), float(high[k]), points) for k in (0, 1))
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    return torch.cartesian_prod(a, b), extent


def distances(points: Tensor, z: Tensor) -> Tensor:
    """From each point to the nearest latent mean, in standard deviations of the means."""
    scale = z.std(0)
    return torch.cdist(points / scale, z / scale).min(1).values


def draw(row: Any, name: str, model: StochasticAutoencoder, images: Images, side: int) -> list[str]:
    """One model's heat map and pictures; its line of the table."""
    z = model.latent(images.new_x, 30).mean
    points, extent = grid(z, side)
    deviation = model.decode(points, 30).std.flatten(1).mean(1)
    row[0].imshow(
        deviation.view(side, side).T, origin="lower", extent=extent, aspect="auto", cmap="viridis_r"
    )
    row[0].scatter(*z.T, c=images.new_y, s=3, cmap="tab10")
    row[0].set_title(name, fontsize=9)
    found = model.reconstruct(images.new_x[:3], 100)
    for k in range(3):
        report.show(row[1 + k], found.mean[k], title="mean" if k == 0 else "")
        report.show(row[4 + k], found.variance[k], "viridis", "variance" if k == 0 else "")
    away = distances(points, z)
    near, far = (float(deviation[mask].mean()) for mask in (away < 0.2, away > 1))
    error = (model.reconstruct(images.new_x, 30).mean - images.new_x).square().mean()
    return [name, f"{float(error):.4f}", f"{near:.4f}", f"{far:.4f}", f"{far / near:.2f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments)
    with report.timed():
        images = load(chosen.data, 300 if chosen.quick else 2000, 300)
        recipe = models.dense(2 if chosen.quick else 12, method="approx", **models.ONLINE)
        figure, axes = report.new_figure(
            len(KINDS), 7, (13, 2.2 * len(KINDS)), width_ratios=[2, 1, 1, 1, 1, 1, 1]
        )
        rows = [["model", "mean squared error", "std at data", "std far away", "ratio"]]
        for row, name in zip(axes, KINDS, strict=True):
            model = models.KINDS[name](recipe, images, 0)
            rows.append(draw(row, name, model, images, 12 if chosen.quick else 40))
        print(f"{images.source}, {len(images.x)} images")
        report.save(chosen.out, "latent_space", report.table(rows), figure)


if __name__ == "__main__":
    main()
