"""Faces of 64 x 64 pixels: mean and variance of their reconstructions.

Figure 13 of Laplacian autoencoders (Miani et al., 2022), with a convolutional network of five
layers each way and 64 latent variables. Without a file the faces are digits, enlarged.

    python examples/autoencoders/faces.py --data faces.npz --out results
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import models
import numpy
import report
import torch
import torch.nn.functional as F
from data import load
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapkernels as lk

SIDE = 64
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
        model = lk.LaplacianAutoencoder(
            encoder(), decoder(),
            likelihood=lk.likelihoods.Gaussian(models.NOISE), optimizer=models.adam,
            **models.ONLINE,
        )  # fmt: skip
        model.fit(DataLoader(TensorDataset(train), 32, shuffle=True), 1 if chosen.quick else 25)
        found = model.reconstruct(new, 5 if chosen.quick else 30)
        squared = (found.mean - new).square()
        rows = [["", "figure"]]
        rows.append(["mean squared error of new images", f"{float(squared.mean()):.4f}"])
        rows.append(["mean variance", f"{float(found.variance.mean()):.5f}"])
        pair = torch.stack([squared.mean(0).flatten(), found.variance.mean(0).flatten()])
        rows.append(["correlation of both over pixels", f"{float(pair.corrcoef()[0, 1]):.2f}"])
        figure, axes = report.new_figure(3, 5, (7.5, 4.6))
        for k in range(5):
            report.show(axes[0, k], new[k], title="input" if k == 0 else "")
            report.show(axes[1, k], found.mean[k], title="mean" if k == 0 else "")
            report.show(axes[2, k], found.variance[k], "viridis", "variance" if k == 0 else "")
        print(f"{source}, {len(train)} images of {SIDE} x {SIDE}, {model.method} diagonal")
        report.save(chosen.out, "faces", report.table(rows), figure)


if __name__ == "__main__":
    main()
