"""Posteriors out of what an adaptive optimiser has kept."""

from lapkernels.l2m.l2m import L2M
from lapkernels.l2m.mixture import Mixture

__all__ = ["L2M", "Mixture"]
