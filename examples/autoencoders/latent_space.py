"""Where decoders are unsure, in the latent space of a VAE and of Laplacian autoencoders.

Figures 1 and 8 of Laplacian autoencoders (Miani et al., 2022): latent means over a heat map of the
decoder's standard deviation, and mean and deviation of reconstructions.

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

KINDS = ("VAE, learned variance", "LAE (post-hoc)", "LAE (online)")
PICTURED = 3


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


def run(model: StochasticAutoencoder, images: Images, side: int) -> dict[str, Any]:
    """What the table and the picture show of one model."""
    z = model.latent(images.new_x, 30).mean
    points, extent = grid(z, side)
    deviation = model.decode(points, 50).std.flatten(1).mean(1)
    pictured = torch.stack([images.new_x[images.new_y == c][0] for c in (3, 4, 8)][:PICTURED])
    found = model.reconstruct(pictured, 100)
    away = distances(points, z)
    near, far = (float(deviation[mask].mean()) for mask in (away < 0.2, away > 1))
    error = (model.reconstruct(images.new_x, 30).mean - images.new_x).square().mean()
    return {
        "table": [float(error), near, far, far / max(near, 1e-12)],
        "z": report.rounded(z),
        "classes": images.new_y.tolist(),
        "extent": extent,
        "deviation": report.rounded(deviation.view(side, side), 5),
        "pictures": [report.rounded(x[:, 0], 3) for x in (pictured, found.mean, found.std)],
    }


def draw(figure: Any, axes: Any, name: str, one: dict[str, Any]) -> None:
    """One model: its heat map with the latent means, inputs with their reconstructions."""
    heat, *rest = axes
    values = torch.tensor(one["deviation"]).T
    shown = heat.imshow(values, origin="lower", extent=one["extent"], aspect="auto", cmap="viridis")
    z = torch.tensor(one["z"])
    heat.scatter(z[:, 0], z[:, 1], c=one["classes"], s=4, cmap="tab10", linewidths=0)
    heat.set(
        xticks=[],
        yticks=[],
        title=f"{name.split(',')[0]}: {one['table'][3]:.1f} times as unsure far away",
    )
    figure.colorbar(shown, ax=heat, label="σ of pixels")
    for part, (title, color) in enumerate((("input", "gray"), ("mean", "gray"), ("σ", "viridis"))):
        for k, ax in enumerate(rest[part * PICTURED : (part + 1) * PICTURED]):
            report.show(ax, torch.tensor(one["pictures"][part][k]), title, cmap=color)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments)
    with report.timed():
        images = load(chosen.data, 300 if chosen.quick else 11_000, 300)
        recipe = models.dense(2 if chosen.quick else 15)
        kept = report.results(chosen, "latent_space")
        figure, axes = report.new_figure(
            len(KINDS), 1 + 3 * PICTURED, (13, 2.6 * len(KINDS)),
            width_ratios=[3.4, *[1] * (3 * PICTURED)],
        )  # fmt: skip
        rows = [["model", "mean squared error", "σ at data", "σ far away", "ratio"]]
        for row, name in zip(axes, KINDS, strict=True):
            one = report.once(
                kept, f"{name}, {images.source}, {len(images.x)} images",
                lambda kind=name: run(
                    models.KINDS[kind](recipe, images, 0), images, 12 if chosen.quick else 40
                ),
            )  # fmt: skip
            draw(figure, row, name, one)
            rows.append([name, *(f"{value:.4f}" for value in one["table"][:3])])
            rows[-1].append(f"{one['table'][3]:.2f}")
        print(f"{images.source}, {len(images.x)} images")
        report.claim(figure, "A Laplacian decoder is sure where data are and unsure around them")
        report.save(chosen.out, "latent_space", report.table(rows), figure)


if __name__ == "__main__":
    main()
