"""Autoencoders with uncertainty in their latent variables and reconstructions."""

from lapkernels.autoencoder.interface import Draws, StochasticAutoencoder
from lapkernels.autoencoder.laplacian import LaplacianAutoencoder
from lapkernels.autoencoder.moments import Moments
from lapkernels.autoencoder.training import Epoch

__all__ = [
    "Draws",
    "Epoch",
    "LaplacianAutoencoder",
    "Moments",
    "StochasticAutoencoder",
]
