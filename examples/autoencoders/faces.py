"""Faces of 64 x 64 pixels: mean and variance of their reconstructions.

Figure 13 of Laplacian autoencoders (Miani et al., 2022), with a convolutional network of five
layers each way and 64 latent variables. Without a file the faces are digits, enlarged.

    python examples/autoencoders/faces.py --data faces.npz --out results
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import report
import torch
import torch.nn.functional as F
from data import load
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapkernels as lk
from lapkernels.autoencoder import Moments, PlainAutoencoder

SIDE, EPOCHS = 64, 120
CORRELATIONS = ("σ² and error over pixels", "over all", "over images")
CHANNELS = (1, 8, 16, 16, 32, 64)


def encoder() -> nn.Sequential:
    """Five convolutions, each halving the resolution, and 64 latent variables."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(CHANNELS):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4, 64))


def decoder() -> nn.Sequential:
    """The mirror image, by nearest-neighbour upsampling."""
    layers: list[nn.Module] = [nn.Linear(64, 64 * 4), nn.Tanh(), nn.Unflatten(1, (64, 2, 2))]
    for inputs, outputs in pairwise(CHANNELS[::-1]):
        layers += [
            nn.Upsample(scale_factor=2),
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.Tanh(),
        ]
    return nn.Sequential(*layers[:-1])


def pictures(file: Path | None) -> tuple[Tensor, str]:
    """All images [N, 1, 64, 64] between 0 and 1, shuffled."""
    if file is None:
        x, source = load(None, 400, 1).x, "scikit-learn's digits, enlarged"
    else:
        with numpy.load(file) as arrays:
            x = torch.from_numpy(arrays["x"]).float().unsqueeze(1) / 255
        height, width = x.shape[2:]
        top = (height - width) // 2
        x, source = x[:, :, top : top + width], file.stem
    x = F.interpolate(x, size=(SIDE, SIDE), mode="bilinear", antialias=True)
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))], source


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments)
    with report.timed():
        x, source = pictures(chosen.data)
        x = x[:12] if chosen.quick else x
        held = 5 if chosen.quick else 20
        train, new = x[:-held], x[-held:]
        torch.manual_seed(0)
        # The last of the training images say when to stop.
        train, held_out = train[:-held], train[-held:]
        loader = DataLoader(TensorDataset(train), 32, shuffle=True)
        epochs = 1 if chosen.quick else EPOCHS
        kept = report.results(chosen, "faces")
        rows = [["model", "epochs", "squared error", "mean variance", *CORRELATIONS]]
        pictured: dict[str, list[Any]] = {}
        for name in ("AE", "LAE (online)"):

            def run(name: str = name) -> dict[str, Any]:
                torch.manual_seed(0)
                make = PlainAutoencoder if name == "AE" else lk.LaplacianAutoencoder
                model = make(encoder(), decoder())
                model.fit(loader, epochs, validation=[held_out], patience=10)
                found = model.reconstruct(new, 5 if chosen.quick else 50)
                return {"epochs": len(model.history), **scores(found, new)}

            one = report.once(kept, f"{name}, {source}, {len(train)} images, {epochs}", run)
            values = [one["error"], one["variance"]]
            rows.append([name, str(one["epochs"]), *(f"{value:.5f}" for value in values)])
            rows[-1] += [
                f"{value:.2f}" if value is not None else "" for value in one["correlation"]
            ]
            pictured[name] = one["pictures"]
        draw(new, pictured, chosen.out, rows)
        print(f"{source}, {len(train)} images of {SIDE} x {SIDE}")


def scores(found: Moments, new: Tensor) -> dict[str, Any]:
    """Error, variance, their correlation over pixels and over all entries, and five images."""
    squared = (found.mean - new).square()
    pairs = (
        (squared.mean(0).flatten(), found.variance.mean(0).flatten()),
        (squared.flatten(), found.variance.flatten()),
        (squared.flatten(1).mean(1), found.variance.flatten(1).mean(1)),
    )
    varies = bool(found.variance.any())
    shown = (found.mean, found.variance.sqrt(), squared.sqrt())
    return {
        "error": float(squared.mean()),
        "variance": float(found.variance.mean()),
        "correlation": [
            float(torch.stack(pair).corrcoef()[0, 1]) if varies else None for pair in pairs
        ],
        "pictures": [report.rounded(x[:5, 0], 3) for x in shown],
    }


def draw(
    new: Tensor, pictured: dict[str, list[Any]], out: Path | None, rows: list[list[str]]
) -> None:
    """Inputs, what both models make of them, and the deviations beside the errors."""
    plain, ours = pictured["AE"], pictured["LAE (online)"]
    lines: dict[str, tuple[Tensor, dict[str, Any]]] = {
        "input": (new[:5, 0], {}),
        "AE": (torch.tensor(plain[0]), {}),
        "LAE, mean": (torch.tensor(ours[0]), {}),
        "LAE, σ": (torch.tensor(ours[1]), {"cmap": "viridis"}),
        "LAE, |error|": (torch.tensor(ours[2]), {"cmap": "viridis", "vmin": 0, "vmax": 0.4}),
    }
    figure, axes = report.new_figure(len(lines), 5, (7.2, 7.0))
    for row, (name, (values, settings)) in zip(axes, lines.items(), strict=True):
        for k, ax in enumerate(row):
            limits = {} if settings else {"vmin": 0, "vmax": 1}
            report.show(ax, values[k], "", name if k == 0 else "", **settings, **limits)
    report.claim(figure, "Faces of people: mean, uncertainty and error")
    report.save(out, "faces", report.table(rows), figure)


if __name__ == "__main__":
    main()
