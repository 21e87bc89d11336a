"""The autoencoders that the examples compare, made and trained alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import networks
import torch
from data import Images
from torch import nn

import lapkernels as lk
from lapkernels.autoencoder import (
    DropoutAutoencoder,
    EnsembleAutoencoder,
    PlainAutoencoder,
    StochasticAutoencoder,
    VariationalAutoencoder,
    side_by_side,
    with_dropout,
)

# About the squared error of a pixel that plain autoencoders leave: the noise of those whose
# posterior or divergence depends on it.
NOISE = 0.03
# The paper's, where the decoder learns the variance of pixels.
KL_SCALE = 1e-3
PATIENCE = 3


@dataclass(frozen=True)
class Recipe:
    """Networks with ``latent`` variables, and for how many epochs they are trained at most.

    Training stops when the loss of validation images has not fallen for a few epochs.
    ``online`` are settings of the online Laplacian autoencoder: none, its defaults.
    """

    encoder: Callable[[int, int], nn.Sequential]
    decoder: Callable[[int, int], nn.Sequential]
    epochs: int
    latent: int = 2
    online: dict[str, Any] = field(default_factory=dict)

    def networks(self, images: Images, seed: int) -> tuple[nn.Sequential, nn.Sequential]:
        """Encoder and decoder with the initial weights of a seed."""
        torch.manual_seed(seed)
        return self.encoder(images.side, self.latent), self.decoder(images.side, self.latent)

    def trained(self, model: Any, images: Images) -> Any:
        """The model, fitted."""
        return model.fit(
            images.loader(), self.epochs, validation=images.validation(), patience=PATIENCE
        )


def dense(
    epochs: int, latent: int = 2, widths: tuple[int, ...] = (256, 64), **online: Any
) -> Recipe:
    """Linear layers with tanh between them."""
    return Recipe(
        lambda side, size: networks.dense(side, widths, size),
        lambda side, size: networks.dense_decoder(side, widths, size),
        epochs,
        latent,
        online,
    )


def plain(recipe: Recipe, images: Images, seed: int) -> PlainAutoencoder:
    """Trained without uncertainty."""
    return recipe.trained(PlainAutoencoder(*recipe.networks(images, seed), seed=seed), images)


def variational(recipe: Recipe, images: Images, seed: int) -> StochasticAutoencoder:
    """With a second encoder for the variance of the latent variables."""
    mean, decoder = recipe.networks(images, seed)
    log_variance = recipe.encoder(images.side, recipe.latent)
    made = VariationalAutoencoder(
        side_by_side(mean, log_variance), decoder,
        likelihood=lk.likelihoods.Gaussian(NOISE), seed=seed,
    )  # fmt: skip
    return recipe.trained(made, images)


def learned_variance(recipe: Recipe, images: Images, seed: int) -> StochasticAutoencoder:
    """A variational one with a second decoder for the variance of pixels, as in the paper."""
    mean, decoder = recipe.networks(images, seed)
    log_variance = recipe.encoder(images.side, recipe.latent)
    # From a variance of 1 few steps do not learn to use the latent variables.
    torch.nn.init.constant_(log_variance[-1].bias, -6.0)  # pyright: ignore[reportArgumentType]
    decoders = side_by_side(decoder, recipe.decoder(images.side, recipe.latent))
    made = VariationalAutoencoder(
        side_by_side(mean, log_variance), decoders,
        kl_scale=KL_SCALE, likelihood="heteroscedastic", seed=seed,
    )  # fmt: skip
    return recipe.trained(made, images)


def dropout(recipe: Recipe, images: Images, seed: int) -> StochasticAutoencoder:
    """With a fifth of the units dropped between layers, in training and in use."""
    encoder, decoder = recipe.networks(images, seed)
    made = DropoutAutoencoder(with_dropout(encoder), with_dropout(decoder), seed=seed)
    return recipe.trained(made, images)


def ensemble(recipe: Recipe, images: Images, seed: int) -> StochasticAutoencoder:
    """Five that were trained on their own."""
    return EnsembleAutoencoder([plain(recipe, images, 100 * seed + n) for n in range(5)])


def post_hoc(recipe: Recipe, images: Images, seed: int) -> lk.LaplacianAutoencoder:
    """A Laplace approximation around a plain one, its prior tuned by the evidence."""
    trained = plain(recipe, images, seed)
    found = lk.LaplacianAutoencoder(
        trained.encoder, trained.decoder, recipe.online.get("method", "mixed"),
        likelihood=lk.likelihoods.Gaussian(NOISE), seed=seed,
    )  # fmt: skip
    found.fit_post_hoc(images.training.split(200))
    return found


def online(recipe: Recipe, images: Images, seed: int) -> lk.LaplacianAutoencoder:
    """A Laplacian autoencoder trained from the start, by its defaults."""
    made = lk.LaplacianAutoencoder(*recipe.networks(images, seed), seed=seed, **recipe.online)
    return recipe.trained(made, images)


KINDS: dict[str, Callable[[Recipe, Images, int], StochasticAutoencoder]] = {
    "AE": plain,
    "VAE": variational,
    "VAE, learned variance": learned_variance,
    "MC-AE": dropout,
    "AE ensemble": ensemble,
    "LAE (post-hoc)": post_hoc,
    "LAE (online)": online,
}
