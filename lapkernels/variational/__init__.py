"""Posteriors trained with the model: Variational Laplace and two baselines."""

from lapkernels.variational.laplace import VariationalLaplace
from lapkernels.variational.mean_field import MeanField, VariationalInference
from lapkernels.variational.objective import MaximumAPosteriori, Objective

__all__ = [
    "MaximumAPosteriori",
    "MeanField",
    "Objective",
    "VariationalInference",
    "VariationalLaplace",
]
