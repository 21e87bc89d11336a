"""Which convolutions have kernels for columns that share their zeros, and when those are faster."""

from __future__ import annotations

import torch
from torch import Tensor

from lapkernels.kernels import NATIVE, current_backend
from lapkernels.kernels.selector import DTYPES
from lapkernels.ops import serving
from lapkernels.ops.base.geometry import Geometry
from lapkernels.ops.base.registration import Route, route

# Entries of a column that are looked at for zeros.
LOOKED_AT = 4096


def is_plain(geometry: Geometry) -> bool:
    """Whether a layer is a convolution in one group, not transposed."""
    return not (geometry.is_linear or geometry.transposed) and geometry.groups == 1


def check_plain(geometry: Geometry) -> None:
    """Raise unless the layer is a convolution in one group, not transposed."""
    if not is_plain(geometry):
        raise ValueError(
            "a convolution with groups=1 that is not transposed is needed, not "
            f"kernel_size={geometry.kernel_size}, groups={geometry.groups}, "
            f"transposed={geometry.transposed}"
        )


def can_skip_zeros(s: Tensor, geometry: Geometry) -> bool:
    """Whether an op that skips shared zeros of ``s`` [V, N, O, *out] may serve this layer."""
    return not (
        not is_plain(geometry)
        or len(geometry.kernel_size) != 2
        or geometry.padding_mode != "zeros"
        or NATIVE.path is None
        or current_backend() != "auto"
        or not s.is_cpu
        or s.dtype not in DTYPES
        or s.numel() == 0
        or s.shape[3:].numel() == 1  # an outer product: torch's GEMM is faster
        or route([s]) is not Route.DIRECT
    )


def mostly_zero(s: Tensor, geometry: Geometry) -> bool:
    """Whether an op that skips shared zeros of ``s`` [V, N, O, *out] should serve this layer.

    Columns behind ReLU and max-pooling share their zeros, so some entries of the first one show it.
    Only speed depends on it: the ops are exact for all columns.
    """
    if not serving.zeros_looked_for(s.numel()) or not can_skip_zeros(s, geometry):
        return False
    # An odd step samples all image columns.
    some = s[0].flatten()[:: s[0].numel() // LOOKED_AT | 1]
    return serving.zeros_skipped(int(torch.count_nonzero(some)), some.numel())
