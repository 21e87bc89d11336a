"""Memory of the kernels beside their arguments and results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
MIB = 1 << 20


@pytest.mark.usefixtures("cpp")
def test_kernels_hold_no_columns_and_no_lines() -> None:
    """G of all samples and columns would take 2.6, 30 and 61 MiB, a copy of the line 9 MiB."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.ops.workspace"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout)
    if None in found.values():
        pytest.skip("the system does not tell the peak of the resident set")
    assert found and all(peak < MIB for peak in found.values()), found
