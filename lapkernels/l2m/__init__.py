"""Posteriors from the second moment that an adaptive optimiser keeps."""

from lapkernels.l2m.l2m import L2M
from lapkernels.l2m.mixture import Mixture

__all__ = ["L2M", "Mixture"]
