"""What holds for every launch because of what the sources do not call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [p for folder in ("cuda", "ops") for p in ROOT.glob(f"csrc/{folder}/**/*") if p.is_file()]
FORBIDDEN = {
    # Sums in no fixed order; torch.use_deterministic_algorithms would have to be asked.
    "atomics": r"\batomic[A-Z]\w*\(",
    # The host would wait for the device.
    "synchronisation": r"Synchronize\b|\bcudaMemcpy\w*\(|\bcudaFree\w*\(|\.item<",
    # Memory is torch's, and streams are.
    "memory or streams of their own": r"\bcudaMalloc\w*\(|\bcudaStreamCreate\w*\(",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_kernels_have_no(what: str) -> None:
    assert len(SOURCES) > 50
    found = [p.name for p in SOURCES if re.search(FORBIDDEN[what], p.read_text())]
    assert found == []


def test_device_code_knows_no_torch() -> None:
    """So nvcc alone compiles it, and a C++ compiler does for the emulation."""
    found = [
        p.name for p in SOURCES if "cuda" in p.parts and re.search("torch/|at::", p.read_text())
    ]
    assert found == []


def test_every_launch_is_checked() -> None:
    """There is one place that launches, and it asks CUDA for the error at once."""
    launches = {p.name: p.read_text().count("<<<") for p in ROOT.glob("csrc/**/*") if p.is_file()}
    assert {name: count for name, count in launches.items() if count} == {"launch.h": 1}
    text = (ROOT / "csrc/cuda/base/launch.h").read_text()
    assert re.search(r">>>\(\s*task\);\s*const cudaError_t error = cudaGetLastError\(\);", text)
