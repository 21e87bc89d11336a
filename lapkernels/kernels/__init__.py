"""Which implementation of an op runs: the compiled one, or the reference in pure torch."""

from lapkernels.kernels.native import NATIVE, simd_level
from lapkernels.kernels.selector import (
    BACKENDS,
    OpReport,
    compiled,
    current_backend,
    report,
    use_backend,
)

__all__ = [
    "BACKENDS",
    "NATIVE",
    "OpReport",
    "compiled",
    "current_backend",
    "report",
    "simd_level",
    "use_backend",
]
