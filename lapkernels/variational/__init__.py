"""Posteriors that are trained with the model: Variational Laplace and what it is compared with."""

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
