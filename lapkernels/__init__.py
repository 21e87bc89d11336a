"""Compiled kernels for the curvature of Bayesian neural networks in torch.

Importing this loads ops and likelihoods; everything else is loaded at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lapkernels import likelihoods, ops
from lapkernels.kernels import use_backend

if TYPE_CHECKING:
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
        unchecked,
        use_processes,
    )
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
    "unchecked",
    "use_backend",
    "use_processes",
]

# Where the other names are looked for, in this order.
_PACKAGES = ("curvature", "rules", "laplace", "variational", "autoencoder", "l2m")


def __getattr__(name: str) -> Any:
    """Load a name at its first use."""
    if name in _PACKAGES:
        return import_module(f"lapkernels.{name}")
    if name in __all__:
        for package in _PACKAGES:
            found = getattr(import_module(f"lapkernels.{package}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module 'lapkernels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
