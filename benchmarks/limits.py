"""Sizes at which a method is not worth running, by what it is known to need, and why not."""

from __future__ import annotations

from benchmarks.networks import NetworkSize

# Bytes of the tensors that a method holds at once, and backward passes one after the other.
BYTES = 6e9
PASSES = 4000


def jacobian(size: NetworkSize) -> str | None:
    """For methods that hold the columns of all samples, at the parameters and in between."""
    return _too_large(4.0 * size.samples * size.outputs * (size.parameters + size.activations))


def columns(size: NetworkSize) -> str | None:
    """For methods that hold the columns of all samples, but no Jacobian of the parameters."""
    return _too_large(4.0 * size.samples * size.outputs * size.activations)


def passes(size: NetworkSize) -> str | None:
    """For methods with a backward pass for every output, one after the other."""
    if size.outputs <= PASSES:
        return None
    return f"too slow: {size.outputs} backward passes, one after the other"


def _too_large(needed: float) -> str | None:
    return None if needed <= BYTES else f"too large: it would hold {needed / 1e9:.0f} GB"
