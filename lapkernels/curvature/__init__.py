"""Curvature of a model on data: tensors by parameter name."""

from lapkernels.curvature.data.exchange import use_processes
from lapkernels.curvature.data.processes import Shard
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.passes.self_check import unchecked
from lapkernels.curvature.quantities.blocks import Blocks, blocks
from lapkernels.curvature.quantities.diag import diag
from lapkernels.curvature.quantities.full import Full, full
from lapkernels.curvature.quantities.ggn_product import ggn_product
from lapkernels.curvature.quantities.gradient_and_diag import GradientAndDiagonal, gradient_and_diag
from lapkernels.curvature.quantities.hessian import hessian_diag
from lapkernels.curvature.quantities.jacobian import jacobian, sample_gradients
from lapkernels.curvature.quantities.kron import kron
from lapkernels.curvature.quantities.kron_corrected import CorrectedKronecker, kron_corrected
from lapkernels.curvature.quantities.low_rank import LowRank, low_rank
from lapkernels.curvature.quantities.predictive import predictive_covariance, predictive_variance
from lapkernels.curvature.quantities.propagated import propagated_variance
from lapkernels.curvature.results.covariance import (
    CovarianceBlock,
    IndependentEntries,
    KroneckerEigenbasis,
)
from lapkernels.curvature.results.eigenbasis import Eigenbasis
from lapkernels.curvature.results.kronecker import Factors, Kronecker
from lapkernels.curvature.results.summary import Diagonal

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
