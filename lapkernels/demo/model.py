"""The demo's autoencoder and its training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def autoencoder(size: Sequence[int], latent: int = 12) -> nn.Sequential:
    """Convolutional autoencoder of images [N, 1, *size], with ReLU in between.

    ReLU was chosen for the picture: units that training images seldom switch on keep much of the
    prior's variance, and unusual images switch them on. With tanh instead, the diagonal posterior
    was no less sure of noise and rotated digits than of test digits.
    """
    height, width = size[0] // 4, size[1] // 4
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * height * width, latent)),
        *(nn.Linear(latent, 16 * height * width), nn.ReLU()),
        nn.Unflatten(1, (16, height, width)),
        *(nn.ConvTranspose2d(16, 16, 4, stride=2, padding=1), nn.ReLU()),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
    )


def train(model: nn.Sequential, images: Tensor, epochs: int, batch: int = 64) -> float:
    """Fit by Adam; returns the variance of the residuals, which is the likelihood's noise."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in _progress(epochs):
        for part in torch.randperm(len(images)).split(batch):
            x = images[part]
            optimizer.zero_grad()
            F.mse_loss(model(x), x).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float(F.mse_loss(model(images), images))


def _progress(epochs: int) -> Iterable[int]:
    try:
        from tqdm import trange
    except ImportError:
        return range(epochs)
    return trange(epochs, desc="training", unit="epoch", leave=False)
