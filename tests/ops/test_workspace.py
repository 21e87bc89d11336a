"""Memory of the kernels beside their arguments and results."""

from __future__ import annotations

import json

import pytest

from tests.curvature.memory import ALLOCATOR
from tests.programs import printed

MIB = 1 << 20


@pytest.mark.usefixtures("cpp")
def test_kernels_hold_no_columns_and_no_lines() -> None:
    """G of all samples and columns would take 2.6, 30 and 61 MiB, a copy of the line 9 MiB."""
    found = json.loads(printed("-m", "tests.ops.workspace", **ALLOCATOR))
    if None in found.values():
        pytest.skip("the system does not tell the peak of the resident set")
    assert found and all(peak < MIB for peak in found.values()), found
