"""The variational autoencoder (Kingma and Welling, 2014)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.autoencoder.interface import Draws
from lapkernels.autoencoder.networks import outputs
from lapkernels.autoencoder.plain import TrainedByGradient


class VariationalAutoencoder(TrainedByGradient):
    r"""q(z | x) = N(m, exp(l)), with m and l the halves of what the encoder gives, [N, 2K].

    .. math:: -E_q[\log p(x | z)] + \beta \, KL(q(z | x) \,|\, N(0, 1)), \qquad
              \beta = \text{kl_scale}.

    With the likelihood "heteroscedastic" the decoder predicts variances of the pixels as well.
    """

    def __init__(
        self, encoder: nn.Module, decoder: nn.Module, *, kl_scale: float = 1.0, **options: Any
    ) -> None:
        super().__init__(encoder, decoder, **options)
        if not kl_scale >= 0:
            raise ValueError(f"kl_scale={kl_scale} must not be negative")
        self.kl_scale = kl_scale

    def settings(self) -> str:
        """The weight of the divergence."""
        return f"kl_scale {self.kl_scale}"

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z | x), each [N, K]."""
        mean, log_variance = self.encoder(x.clone()).chunk(2, 1)
        return mean, log_variance

    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The negative evidence bound of a sample, with one draw of z."""
        mean, log_variance = self.posterior(x)
        z = _draw(mean, log_variance, 1, generator)[0]
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
        return (self.likelihood.nll(self.decoder(z), x) + self.kl_scale * divergence) / len(x)

    def draws(self, x: Tensor, samples: int) -> Draws:
        """z from q(z | x), and their outputs."""
        mean, log_variance = outputs(self.encoder, x).chunk(2, 1)
        latent = _draw(mean, log_variance, samples, self.generator)
        output = outputs(self.decoder, latent.flatten(0, 1)).unflatten(0, latent.shape[:2])
        return Draws(latent, output)

    def decoded(self, z: Tensor, samples: int) -> Tensor:
        """The decoder is not random: its one output, S = 1."""
        return outputs(self.decoder, z).unsqueeze(0)


def _draw(mean: Tensor, log_variance: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    noise = torch.randn(
        samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device
    )
    return mean + (0.5 * log_variance).exp() * noise
