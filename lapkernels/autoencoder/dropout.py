"""Autoencoders with Monte Carlo dropout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.autoencoder.interface import Draws, seeded_from
from lapkernels.autoencoder.plain import TrainedByGradient
from lapkernels.curvature.data.contents import Contents, check_eval
from lapkernels.curvature.recording.run_model import call_model


class DropoutAutoencoder(TrainedByGradient):
    """Monte Carlo dropout (Gal and Ghahramani, 2016): dropout stays on when drawing.

    :func:`with_dropout` adds it to networks that have none.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, **options: Any) -> None:
        super().__init__(encoder, decoder, **options)
        self._dropouts = [m for m in self.model.modules() if isinstance(m, nn.Dropout)]
        if not self._dropouts:
            raise ValueError("encoder and decoder hold no nn.Dropout: with_dropout() adds it")
        for module in self._dropouts:
            module.train()

    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """-log p(x | f) of a sample with units dropped."""
        with seeded_from(generator):
            return self.likelihood.nll(self.model(x.clone()), x) / len(x)

    @torch.no_grad()
    def draws(self, x: Tensor, samples: int) -> Draws:
        """Latent variables and outputs with other units dropped in every draw and sample."""
        with seeded_from(self.generator):
            latent = self._outputs(self.encoder, _repeated(x, samples))
            output = self._outputs(self.decoder, latent)
        shape = (samples, len(x))
        return Draws(latent.unflatten(0, shape), output.unflatten(0, shape))

    @torch.no_grad()
    def decoded(self, z: Tensor, samples: int) -> Tensor:
        """Outputs with other units of the decoder dropped in every draw and sample."""
        with seeded_from(self.generator):
            output = self._outputs(self.decoder, _repeated(z, samples))
        return output.unflatten(0, (samples, len(z)))

    def _outputs(self, network: nn.Module, x: Tensor) -> Tensor:
        contents = Contents.of(network)
        others = [(path, m) for path, m in contents.modules if m not in self._dropouts]
        check_eval(replace(contents, modules=others))
        return call_model(network, (x,), {})


def with_dropout(network: nn.Sequential, p: float = 0.2) -> nn.Sequential:
    """The same layers with dropout in front of every one with parameters but the first."""
    layers: list[nn.Module] = []
    seen = False
    for module in network:
        trained = any(True for _ in module.parameters())
        if trained and seen:
            layers.append(nn.Dropout(p))
        seen = seen or trained
        layers.append(module)
    return nn.Sequential(*layers)


def _repeated(x: Tensor, times: int) -> Tensor:
    return x.expand(times, *x.shape).flatten(0, 1)
