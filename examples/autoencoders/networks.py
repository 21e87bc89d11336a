"""Encoders and decoders of the examples, with tanh as in the paper."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def dense(side: int, widths: tuple[int, ...] = (128, 64), latent: int = 2) -> nn.Sequential:
    """Linear layers from images to latent variables (Miani et al., 2022, A.1)."""
    return nn.Sequential(nn.Flatten(), *_linear((side * side, *widths, latent)))


def dense_decoder(side: int, widths: tuple[int, ...] = (128, 64), latent: int = 2) -> nn.Sequential:
    """The mirror image of :func:`dense`."""
    return nn.Sequential(
        *_linear((latent, *widths[::-1], side * side)), nn.Unflatten(1, (1, side, side))
    )


def conv(side: int, latent: int = 2, channels: tuple[int, int] = (8, 12)) -> nn.Sequential:
    """Two convolutions and three linear layers to latent variables (A.2)."""
    first, second = channels
    features = second * (side // 4) ** 2
    return nn.Sequential(
        *(nn.Conv2d(1, first, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Flatten(), *_linear((features, 100, 50, latent))),
    )


def conv_decoder(side: int, latent: int = 2, channels: tuple[int, int] = (8, 12)) -> nn.Sequential:
    """The mirror image of :func:`conv`, with nearest-neighbour upsampling."""
    first, second = channels
    features = second * (side // 4) ** 2
    return nn.Sequential(
        *(*_linear((latent, 50, 100, features)), nn.Tanh()),
        nn.Unflatten(1, (second, side // 4, side // 4)),
        *(nn.Upsample(scale_factor=2), nn.Conv2d(second, first, 3, padding=1), nn.Tanh()),
        *(nn.Upsample(scale_factor=2), nn.Conv2d(first, 1, 3, padding=1)),
    )


def whitening(x: Tensor, features: int) -> nn.Linear:
    """Principal components of images [N, ...], each of variance one; no trained weights."""
    flat = x.flatten(1).double()
    values, vectors = torch.linalg.eigh(flat.T.cov())
    kept = values.flip(0)[:features]
    kept = kept[kept > 1e-4 * kept[0]]
    rows = (vectors.flip(1)[:, : len(kept)] / kept.sqrt()).T
    layer = nn.Linear(flat.shape[1], len(kept)).requires_grad_(False)
    layer.weight.copy_(rows)
    layer.bias.copy_(-rows @ flat.mean(0))
    return layer


def whitened(first: nn.Linear, latent: int = 2, widths: tuple[int, ...] = (256,)) -> nn.Sequential:
    """Linear layers from whitened images to latent variables."""
    return nn.Sequential(nn.Flatten(), first, *_linear((first.out_features, *widths, latent)))


def small_decoder(side: int, latent: int = 2) -> nn.Sequential:
    """Two linear layers and two convolutions, with few weights."""
    return nn.Sequential(
        *(*_linear((latent, 16, side * side // 4)), nn.Tanh()),
        nn.Unflatten(1, (4, side // 4, side // 4)),
        *(nn.Upsample(scale_factor=2), nn.Conv2d(4, 8, 3, padding=1), nn.Tanh()),
        *(nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 3, padding=1)),
    )


def _linear(widths: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return layers[:-1]
