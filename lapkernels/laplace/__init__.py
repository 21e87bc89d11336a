"""Laplace approximations: fit, tune, predict, sample, save."""

from lapkernels.laplace.calibration import Calibration, calibration
from lapkernels.laplace.diagnostics import (
    LCurve,
    diagonalisation_error,
    effective_parameters,
    l_curve,
)
from lapkernels.laplace.evaluation import Comparison, Evaluation
from lapkernels.laplace.laplace import Laplace
from lapkernels.laplace.normalised import normalised_groups
from lapkernels.laplace.plots import (
    plot_bands,
    plot_calibration,
    plot_l_curve,
    plot_matrix,
    plot_spectrum,
)
from lapkernels.laplace.posterior import Posterior
from lapkernels.laplace.predictive.prediction import Prediction
from lapkernels.laplace.prior import Prior
from lapkernels.laplace.swag import Swag
from lapkernels.laplace.tuning.linearised import Optimum
from lapkernels.laplace.tuning.online import OnlineEvidence

__all__ = [
    "Calibration",
    "Comparison",
    "Evaluation",
    "LCurve",
    "Laplace",
    "OnlineEvidence",
    "Optimum",
    "Posterior",
    "Prediction",
    "Prior",
    "Swag",
    "calibration",
    "diagonalisation_error",
    "effective_parameters",
    "l_curve",
    "normalised_groups",
    "plot_bands",
    "plot_calibration",
    "plot_l_curve",
    "plot_matrix",
    "plot_spectrum",
]
