"""Curvature of a model on data: tensors by parameter name."""

from lapkernels.curvature.blocks import Blocks, blocks
from lapkernels.curvature.covariance import (
    CovarianceBlock,
    IndependentEntries,
    KroneckerEigenbasis,
)
from lapkernels.curvature.diag import diag
from lapkernels.curvature.eigenbasis import Eigenbasis
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.full import Full, full
from lapkernels.curvature.gauss_newton import ggn_product
from lapkernels.curvature.gradient_and_diag import GradientAndDiagonal, gradient_and_diag
from lapkernels.curvature.hessian import hessian_diag
from lapkernels.curvature.jacobian import jacobian, sample_gradients
from lapkernels.curvature.kron import kron
from lapkernels.curvature.kron_corrected import CorrectedKronecker, kron_corrected
from lapkernels.curvature.kronecker import Factors, Kronecker
from lapkernels.curvature.low_rank import LowRank, low_rank
from lapkernels.curvature.predictive import predictive_covariance, predictive_variance
from lapkernels.curvature.processes import use_processes
from lapkernels.curvature.propagated import propagated_variance
from lapkernels.curvature.self_check import unchecked
from lapkernels.curvature.sharing import Shard
from lapkernels.curvature.state import Diagonal

__all__ = [
    "Blocks",
    "CorrectedKronecker",
    "CovarianceBlock",
    "Diagonal",
    "Eigenbasis",
    "Factors",
    "Full",
    "GradientAndDiagonal",
    "IndependentEntries",
    "Kronecker",
    "KroneckerEigenbasis",
    "LowRank",
    "Refused",
    "Shard",
    "blocks",
    "diag",
    "full",
    "ggn_product",
    "gradient_and_diag",
    "hessian_diag",
    "jacobian",
    "kron",
    "kron_corrected",
    "low_rank",
    "predictive_covariance",
    "predictive_variance",
    "propagated_variance",
    "sample_gradients",
    "unchecked",
    "use_processes",
]
