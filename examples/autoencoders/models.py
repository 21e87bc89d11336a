"""The autoencoders that the examples compare, made and trained alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

NOISE = 0.05
# Of the variational autoencoders, the paper's.
KL_SCALE = 1e-3
# The paper's rule, from a precision at which the first draws do not drown the signal.
ONLINE: dict[str, Any] = {"update": "online", "memory": 1e-3, "initial_precision": 100.0}


def settled(data_size: int) -> dict[str, Any]:
    """Settings under which the precision settles at the curvature of all data and a prior of 1."""
    return {
        "update": "natural_gradient",
        "memory": 0.1,
        "data_size": data_size,
        "prior": 1.0,
        "initial_precision": float(data_size),
    }


@dataclass(frozen=True)
class Recipe:
    """Networks and how long to train them.

    ``online`` are settings of the online Laplacian autoencoder, ``noise`` the variance of a pixel
    around its reconstruction, the same for all but those that learn it.
    """

    encoder: Callable[[int, int], nn.Sequential]
    decoder: Callable[[int], nn.Sequential]
    epochs: int
    online: dict[str, Any]
    noise: float = NOISE


def dense(epochs: int, **online: Any) -> Recipe:
    """Linear layers."""
    return Recipe(
        lambda side, latent: networks.dense(side, latent=latent),
        networks.dense_decoder,
        epochs,
        online,
    )


def conv(epochs: int, **online: Any) -> Recipe:
    """Convolutions."""
    return Recipe(
        lambda side, latent: networks.conv(side, latent), networks.conv_decoder, epochs, online
    )


def whitened(images: Images, epochs: int, **online: Any) -> Recipe:
    """An encoder of linear layers that sees 100 principal components, and a small decoder."""
    first = networks.whitening(images.x, 100)
    return Recipe(
        lambda side, latent: networks.whitened(first, latent),
        networks.small_decoder,
        epochs,
        online,
    )


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser of all examples."""
    return torch.optim.Adam(parameters, 2e-3)


def plain(recipe: Recipe, images: Images, seed: int) -> PlainAutoencoder:
    """Trained without uncertainty."""
    torch.manual_seed(seed)
    made = PlainAutoencoder(
        recipe.encoder(images.side, 2), recipe.decoder(images.side),
        likelihood=lk.likelihoods.Gaussian(recipe.noise), optimizer=adam, seed=seed,
    )  # fmt: skip
    return made.fit(images.loader(), recipe.epochs)


def learned_variance(recipe: Recipe, images: Images, seed: int) -> StochasticAutoencoder:
    """With a second decoder for the variance of every pixel."""
    torch.manual_seed(seed)
    decoder = side_by_side(recipe.decoder(images.side), recipe.decoder(images.side))
    made = PlainAutoencoder(
        recipe.encoder(images.side, 2), decoder,
        likelihood="heteroscedastic", optimizer=adam, seed=seed,
    )  # fmt: skip
    return made.fit(images.loader(), recipe.epochs)


def variational(recipe: Recipe, images: Images, seed: int) -> StochasticAutoencoder:
    """With two encoders and two decoders, for means and variances."""
    torch.manual_seed(seed)
    mean, log_variance = (recipe.encoder(images.side, 2) for _ in range(2))
    # From a variance of 1 few steps do not learn to use the latent variables.
    torch.nn.init.constant_(log_variance[-1].bias, -6.0)  # pyright: ignore[reportArgumentType]
    encoder = side_by_side(mean, log_variance)
    decoder = side_by_side(recipe.decoder(images.side), recipe.decoder(images.side))
    made = VariationalAutoencoder(
        encoder, decoder, kl_scale=KL_SCALE,
        likelihood="heteroscedastic", optimizer=adam, seed=seed,
    )  # fmt: skip
    return made.fit(images.loader(), recipe.epochs)


def dropout(recipe: Recipe, images: Images, seed: int) -> StochasticAutoencoder:
    """With a fifth of the units dropped between layers, in training and in use."""
    torch.manual_seed(seed)
    made = DropoutAutoencoder(
        with_dropout(recipe.encoder(images.side, 2)), with_dropout(recipe.decoder(images.side)),
        likelihood=lk.likelihoods.Gaussian(recipe.noise), optimizer=adam, seed=seed,
    )  # fmt: skip
    return made.fit(images.loader(), recipe.epochs)


def ensemble(recipe: Recipe, images: Images, seed: int) -> StochasticAutoencoder:
    """Five that were trained on their own."""
    return EnsembleAutoencoder([plain(recipe, images, 100 * seed + n) for n in range(5)])


def post_hoc(recipe: Recipe, images: Images, seed: int) -> lk.LaplacianAutoencoder:
    """A Laplace approximation around a plain one, its prior tuned by the evidence."""
    trained = plain(recipe, images, seed)
    found = lk.LaplacianAutoencoder(
        trained.encoder, trained.decoder, likelihood=trained.likelihood, seed=seed,
        method=recipe.online.get("method"),
    )  # fmt: skip
    found.fit_post_hoc(images.x.split(200))
    return found


def online(recipe: Recipe, images: Images, seed: int) -> lk.LaplacianAutoencoder:
    """A Laplacian autoencoder trained from the start."""
    torch.manual_seed(seed)
    made = lk.LaplacianAutoencoder(
        recipe.encoder(images.side, 2), recipe.decoder(images.side),
        likelihood=lk.likelihoods.Gaussian(recipe.noise), optimizer=adam, seed=seed,
        **recipe.online,
    )  # fmt: skip
    return made.fit(images.loader(), recipe.epochs)


KINDS: dict[str, Callable[[Recipe, Images, int], StochasticAutoencoder]] = {
    "AE": plain,
    "AE, learned variance": learned_variance,
    "VAE": variational,
    "MC-AE": dropout,
    "AE ensemble": ensemble,
    "LAE (post-hoc)": post_hoc,
    "LAE (online)": online,
}
