"""Likelihoods p(y | f) of a model's outputs, and their curvature in the outputs."""

from lapkernels.likelihoods.bernoulli import Bernoulli
from lapkernels.likelihoods.categorical import Categorical
from lapkernels.likelihoods.gaussian import Gaussian
from lapkernels.likelihoods.heteroscedastic import HeteroscedasticGaussian
from lapkernels.likelihoods.likelihood import Columns, Likelihood, LocalColumns, resolve
from lapkernels.likelihoods.loss_function import LossFunction
from lapkernels.likelihoods.poisson import Poisson

__all__ = [
    "Bernoulli",
    "Categorical",
    "Columns",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "LocalColumns",
    "LossFunction",
    "Poisson",
    "resolve",
]
