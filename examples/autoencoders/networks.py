"""Encoders and decoders of the examples, with tanh as in the paper."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


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


def _linear(widths: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return layers[:-1]
