"""Ensembles of autoencoders (Lakshminarayanan et al., 2017)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapkernels.autoencoder.interface import Draws, StochasticAutoencoder


class EnsembleAutoencoder(StochasticAutoencoder):
    """Independently initialised and trained autoencoders; a draw is a member.

    Members share no latent space, so the variance of ``latent`` says little about the input.
    """

    def __init__(self, members: Sequence[StochasticAutoencoder]) -> None:
        if len(members) < 2:
            raise ValueError(f"members: {len(members)} given, an ensemble has two at least")
        first = members[0]
        super().__init__(
            torch.nn.ModuleList(m.encoder for m in members),
            torch.nn.ModuleList(m.decoder for m in members),
            likelihood=first.likelihood,
            seed=first.seed,
        )
        self.members = list(members)

    def fit(self, loader: Any, epochs: int, **options: Any) -> EnsembleAutoencoder:
        """Train the members one after the other, each with its own stopping and checkpoint."""
        checkpoint = options.pop("checkpoint", None)
        for number, member in enumerate(self.members):
            path = None if checkpoint is None else Path(f"{checkpoint}.{number}")
            member.fit(loader, epochs, checkpoint=path, **options)
        return self

    def step(self, x: Tensor) -> Tensor:
        """A step of every member; their mean loss."""
        return torch.stack([member.step(x) for member in self.members]).mean()

    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The members' mean loss."""
        return torch.stack([member.loss(x, generator) for member in self.members]).mean()

    def draws(self, x: Tensor, samples: int) -> Draws:
        """One draw of each member, whatever ``samples`` is."""
        found = [member.draws(x, 1) for member in self.members]
        return Draws(
            torch.cat([draws.latent for draws in found]),
            torch.cat([draws.output for draws in found]),
        )

    def decoded(self, z: Tensor, samples: int) -> Tensor:
        """One output of each member."""
        return torch.cat([member.decoded(z, 1) for member in self.members])

    def _counts(self, x: Tensor, samples: int) -> Iterator[int]:
        return iter([len(self.members)])
