"""Every CUDA kernel compiles for every architecture, with no register spilled to memory.

The oldest has the least room; all together, minutes, are marked slow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cuda.compile import ARCHITECTURES, compiled_kernels, nvcc

SETUP = Path(__file__).parents[2] / "setup.py"


def test_the_library_is_built_for_all() -> None:
    assert f'CUDA_ARCHS = "{" ".join(ARCHITECTURES)}"' in SETUP.read_text()
    assert ARCHITECTURES == ("75", "80", "86", "89", "90", "100", "120")


@pytest.mark.skipif(nvcc() is None, reason="there is no nvcc")
@pytest.mark.parametrize("archs", [("75",), pytest.param(ARCHITECTURES, marks=pytest.mark.slow)])
def test_no_kernel_spills(archs: tuple[str, ...]) -> None:
    kernels = compiled_kernels(archs)
    stems = {arch: {k.stem for k in kernels if k.arch == arch} for arch in archs}
    assert len(stems[archs[0]]) >= 10, "kernels are missing"
    assert all(found == stems[archs[0]] for found in stems.values())
    spilled = [kernel for kernel in kernels if kernel.spilled or kernel.stack]
    assert not spilled, spilled
    # Statically allocated shared memory ends at 48 KiB.
    assert all(kernel.shared <= 48 << 10 for kernel in kernels)
