"""Compiled kernels for the curvature of Bayesian neural networks in torch."""

from lapkernels import likelihoods, ops
from lapkernels.autoencoder import LaplacianAutoencoder
from lapkernels.curvature import (
    Blocks,
    CorrectedKronecker,
    Diagonal,
    Eigenbasis,
    Factors,
    Full,
    GradientAndDiagonal,
    Kronecker,
    LowRank,
    Refused,
    Shard,
    blocks,
    diag,
    full,
    ggn_product,
    gradient_and_diag,
    hessian_diag,
    jacobian,
    kron,
    kron_corrected,
    low_rank,
    predictive_covariance,
    predictive_variance,
    propagated_variance,
    sample_gradients,
    use_processes,
)
from lapkernels.kernels import use_backend
from lapkernels.l2m import L2M, Mixture
from lapkernels.laplace import Laplace, Prior
from lapkernels.rules import register_rule
from lapkernels.variational import (
    MaximumAPosteriori,
    VariationalInference,
    VariationalLaplace,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "L2M",
    "Mixture",
    "Blocks",
    "CorrectedKronecker",
    "Diagonal",
    "Eigenbasis",
    "Factors",
    "Full",
    "GradientAndDiagonal",
    "Kronecker",
    "Laplace",
    "LaplacianAutoencoder",
    "LowRank",
    "MaximumAPosteriori",
    "Prior",
    "Refused",
    "Shard",
    "VariationalInference",
    "VariationalLaplace",
    "blocks",
    "diag",
    "full",
    "ggn_product",
    "gradient_and_diag",
    "hessian_diag",
    "jacobian",
    "kron",
    "kron_corrected",
    "likelihoods",
    "low_rank",
    "ops",
    "predictive_covariance",
    "predictive_variance",
    "propagated_variance",
    "register_rule",
    "sample_gradients",
    "use_backend",
    "use_processes",
]
