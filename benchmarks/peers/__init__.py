"""Whole-model quantities by other packages, one file each, in the families' conventions.

A package that does not support a network raises, and one that is wrong fails the gate: both are
reported. Packages are imported when a method runs, never before.
"""

from benchmarks.peers import asdl, backpack, curvlinops, laplace_torch, nngeometry, stochman

__all__ = ["asdl", "backpack", "curvlinops", "laplace_torch", "nngeometry", "stochman"]
