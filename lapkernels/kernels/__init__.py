"""The choice between compiled kernels, Triton kernels and the reference."""

from lapkernels.kernels import triton
from lapkernels.kernels.native import NATIVE, simd_level
from lapkernels.kernels.selector import (
    BACKENDS,
    OpReport,
    compiled,
    current_backend,
    report,
    use_backend,
    why_not,
)

__all__ = [
    "BACKENDS",
    "NATIVE",
    "OpReport",
    "compiled",
    "current_backend",
    "report",
    "simd_level",
    "triton",
    "use_backend",
    "why_not",
]
