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


def _linear(widths: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return layers[:-1]
