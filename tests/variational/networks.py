"""Small smooth networks in float64, a batch for each, and the objective written out plainly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from lapkernels.likelihoods import Likelihood
from lapkernels.variational import MeanField


class Block(nn.Module):
    """Pre-activation, with a skip."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.narrow = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.wide = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """x plus the branch."""
        h = self.narrow(nn.functional.softplus(self.first(x)))
        return x + self.wide(nn.functional.softplus(self.second(h)))


def dense(*widths: int) -> nn.Sequential:
    """Tanh between Linear layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def residual() -> nn.Sequential:
    """A pre-activation residual network with three classes."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
        Block(4),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def sequences() -> nn.Sequential:
    """Normalisations of every kind, transposed convolution, Linear over positions."""
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding=1),
        nn.BatchNorm1d(4),
        nn.Softplus(),
        nn.ConvTranspose1d(4, 3, 3, stride=2, padding=1, output_padding=1, dilation=1),
        nn.GroupNorm(3, 3),
        nn.GELU(),
        nn.Linear(8, 5),
        nn.LayerNorm(5),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(15, 3),
    )


def prepared(model: nn.Module, seed: int = 0) -> nn.Module:
    """In float64, with weights that leave no activation at rest."""
    torch.manual_seed(seed)
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)
    return model.double()


def gaussian_kl(q: MeanField) -> Tensor:
    """The divergence, term by term."""
    total = torch.zeros((), dtype=torch.float64)
    for name, mean, log_std in zip(q.names, q.means, q.log_std, strict=True):
        s = q.prior_std[name]
        terms = (log_std.exp() ** 2 + mean**2) / s**2 - 1 + math.log(s**2) - 2 * log_std
        total = total + 0.5 * terms.sum()
    return total


def plain_loss(
    q: MeanField, f: Tensor, y: Tensor, labels: Tensor, per_sample: Sequence[Tensor] | None = None
) -> Tensor:
    """Variational Laplace as in its formula, with torch's own double backward."""
    likelihood: Likelihood = q.likelihood
    penalty = torch.zeros((), dtype=f.dtype)
    parts = [likelihood.nll(f, labels)] if per_sample is None else per_sample
    for part in parts:
        gradients = torch.autograd.grad(part, q.means, create_graph=True)
        for log_std, g in zip(q.log_std, gradients, strict=True):
            penalty = penalty + (log_std.exp() ** 2 * g**2).sum()
    fit = likelihood.nll(f, y) + 0.5 * penalty
    return fit / len(f) + q.beta / q.data_size * gaussian_kl(q)
