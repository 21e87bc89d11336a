"""Autoencoders with uncertainty in their latent variables and reconstructions."""

from lapkernels.autoencoder.dropout import DropoutAutoencoder, with_dropout
from lapkernels.autoencoder.ensemble import EnsembleAutoencoder
from lapkernels.autoencoder.imputation import generate, impute
from lapkernels.autoencoder.interface import Description, Draws, StochasticAutoencoder
from lapkernels.autoencoder.laplacian import LaplacianAutoencoder
from lapkernels.autoencoder.moments import Moments
from lapkernels.autoencoder.neighbours import classify
from lapkernels.autoencoder.networks import drawn_outputs
from lapkernels.autoencoder.novelty import Novelty, Roc, areas, novelty, roc
from lapkernels.autoencoder.plain import PlainAutoencoder, side_by_side
from lapkernels.autoencoder.training import Epoch
from lapkernels.autoencoder.variational import VariationalAutoencoder

__all__ = [
    "Description",
    "Draws",
    "DropoutAutoencoder",
    "EnsembleAutoencoder",
    "Epoch",
    "LaplacianAutoencoder",
    "Moments",
    "Novelty",
    "PlainAutoencoder",
    "Roc",
    "StochasticAutoencoder",
    "VariationalAutoencoder",
    "areas",
    "classify",
    "drawn_outputs",
    "generate",
    "impute",
    "novelty",
    "roc",
    "side_by_side",
    "with_dropout",
]
