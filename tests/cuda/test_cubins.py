"""Every CUDA kernel compiles for every architecture, with no register spilled to memory."""

from __future__ import annotations

import pytest

from benchmarks.cuda.compile import ARCHITECTURES, compiled_kernels, nvcc

# The oldest with the tensor cores of both half precisions, and the newest.
USUAL = ("80", "120")
OTHERS = [arch for arch in ARCHITECTURES if arch not in USUAL]


@pytest.mark.skipif(nvcc() is None, reason="there is no nvcc")
@pytest.mark.parametrize(
    "arch", [*USUAL, *(pytest.param(arch, marks=pytest.mark.slow) for arch in OTHERS)]
)
def test_no_kernel_spills(arch: str) -> None:
    kernels = compiled_kernels(arch)
    assert len({kernel.stem for kernel in kernels}) >= 10, "kernels are missing"
    spilled = [kernel for kernel in kernels if kernel.spilled or kernel.stack]
    assert not spilled, spilled
    # Statically allocated shared memory ends at 48 KiB.
    assert all(kernel.shared <= 48 << 10 for kernel in kernels)
