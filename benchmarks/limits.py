"""Sizes at which a method is still worth running, by what it is known to need."""

from __future__ import annotations

from benchmarks.networks import NetworkSize

# Bytes of the tensors that a method holds at once, and backward passes one after the other.
BYTES = 6e9
PASSES = 4000


def jacobian_fits(size: NetworkSize) -> bool:
    """For methods that hold the columns of all samples, at the parameters and in between."""
    return 4.0 * size.samples * size.outputs * (size.parameters + size.activations) <= BYTES


def columns_fit(size: NetworkSize) -> bool:
    """For methods that hold the columns of all samples, but no Jacobian of the parameters."""
    return 4.0 * size.samples * size.outputs * size.activations <= BYTES


def passes_fit(size: NetworkSize) -> bool:
    """For methods with a backward pass for every output, one after the other."""
    return size.outputs <= PASSES
