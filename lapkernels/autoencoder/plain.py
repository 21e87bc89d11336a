"""The deterministic autoencoder."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lapkernels.autoencoder.interface import Draws, StochasticAutoencoder
from lapkernels.autoencoder.networks import outputs
from lapkernels.laplace.rollback import rolled_back


class TrainedByGradient(StochasticAutoencoder, ABC):
    """Steps of the optimiser on the gradient of ``loss``."""

    @rolled_back
    def step(self, x: Tensor) -> Tensor:
        """A step of the optimiser; the loss of a sample."""
        self.optimizer.zero_grad()
        with torch.enable_grad():
            loss = self.loss(x, self.generator)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class PlainAutoencoder(TrainedByGradient):
    """An autoencoder without uncertainty in its weights.

    With the likelihood "gaussian" its variance is constant. With "heteroscedastic" the decoder
    gives means and log-variances, twice as many channels, and the variance is learned: see
    :func:`side_by_side`.
    """

    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """-log p(x | f) of a sample, up to a constant."""
        return self.likelihood.nll(self.model(x.clone()), x) / len(x)

    def draws(self, x: Tensor, samples: int) -> Draws:
        """Its one latent value and output, S = 1 whatever ``samples`` is."""
        latent = outputs(self.encoder, x)
        return Draws(latent.unsqueeze(0), outputs(self.decoder, latent).unsqueeze(0))

    def decoded(self, z: Tensor, samples: int) -> Tensor:
        """Its one output, S = 1."""
        return outputs(self.decoder, z).unsqueeze(0)

    def _counts(self, x: Tensor, samples: int) -> Iterator[int]:
        # All draws are the same.
        return iter([1])


class _SideBySide(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module, dim: int) -> None:
        super().__init__()
        self.first, self.second, self.dim = first, second, dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.first(x), self.second(x)], self.dim)


def side_by_side(first: nn.Module, second: nn.Module, dim: int = 1) -> nn.Module:
    """Two networks on one input, outputs behind each other in ``dim``: means and log-variances."""
    return _SideBySide(first, second, dim)
