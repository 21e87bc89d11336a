"""Laplace approximations: fit, tune, predict, sample, save."""

from lapkernels.laplace.laplace import Laplace
from lapkernels.laplace.normalised import normalised_groups
from lapkernels.laplace.posterior import Posterior
from lapkernels.laplace.prediction import Prediction
from lapkernels.laplace.prior import Prior

__all__ = ["Laplace", "Posterior", "Prediction", "Prior", "normalised_groups"]
