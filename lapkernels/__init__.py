"""Compiled kernels for the curvature of Bayesian neural networks in torch."""

from lapkernels import ops
from lapkernels.kernels import use_backend

__version__ = "0.1.0.dev0"

__all__ = ["ops", "use_backend"]
