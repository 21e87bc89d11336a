"""Every Triton kernel compiles for every device it is meant for, without one, and spills nothing.

Compiling needs Triton without its interpreter, hence in a process of its own.
"""

from __future__ import annotations

import json

import pytest

from lapkernels.kernels import triton
from tests.programs import printed

if triton.absent() is not None:
    pytest.skip(f"no Triton kernels: {triton.absent()}", allow_module_level=True)

# Each dtype on some target, and each target with some dtype.
ONE_EACH = ["sm_80-float32", "sm_90-float16", "sm_100-bfloat16", "gfx942-float64"]
ALL = [
    f"{target}-{dtype}"
    for target in ("sm_80", "sm_90", "sm_100", "gfx942")
    for dtype in ("float32", "float64", "float16", "bfloat16", "tf32", "tf32x3")
    # AMD devices have no TF32 products.
    if not (target.startswith("gfx") and dtype.startswith("tf32"))
]


def sheet(*arguments: str) -> str:
    """What the sheet prints."""
    return printed("-m", "benchmarks.triton.sheet", *arguments, TRITON_INTERPRET="0")


def compiled(*arguments: str) -> list[dict[str, object]]:
    rows = json.loads(sheet(*arguments))
    assert rows, "nothing was compiled"
    return rows


@pytest.mark.parametrize("instance", ONE_EACH)
def test_compiles_without_spills(instance: str) -> None:
    rows = compiled("--json", instance)
    assert {op for row in rows for op in str(row["ops"]).split(", ")} == {*triton.MODULES}
    assert [row for row in rows if row["spills"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("instance", ALL)
def test_every_tile_compiles_without_spills(instance: str) -> None:
    assert [row for row in compiled("--every-tile", "--json", instance) if row["spills"]] == []
