"""The emulator itself: it finds mistakes, and its parts do what CUDA's do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cuda.build import HERE, ROOT, compile_all
from tests.native.build import needs_compiler

pytestmark = needs_compiler

# (file, what it says, what it is made to say)
MISTAKES = {
    "none": ("product/correlate.cuh", "", ""),
    "a barrier is missing": (
        "product/correlate.cuh",
        "    if (step + 1 < steps) store(now ^ 1);\n    __syncthreads();\n",
        "    if (step + 1 < steps) store(now ^ 1);\n",
    ),
    "off by one": ("base/places.cuh", "if (index >= count) {", "if (index > count) {"),
    "a wrong stride": (
        "base/operands.h",
        "w->stride[2 + d] = w->step[d] * o.unit[d];",
        "w->stride[2 + d] = o.unit[d];",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_kernel_show(mistake: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "csrc/cuda", tmp_path / "csrc/cuda")
    shutil.copy(ROOT / "csrc/kernels.h", tmp_path / "csrc")
    name, right, wrong = MISTAKES[mistake]
    source = tmp_path / "csrc/cuda" / name
    text = source.read_text()
    if right:
        assert text.count(right) == 1, "the line to change is not there"
        source.write_text(text.replace(right, wrong))
    flags = ["-O0", f"-I{tmp_path}", "-fsanitize=address"]
    program = compile_all([HERE / "one_op.cpp"], flags, tmp_path / "one_op")
    result = subprocess.run([program], capture_output=True, text=True)
    assert (result.returncode == 0) == (mistake == "none"), result.stdout + result.stderr[-2000:]
    assert (result.stdout == "all numbers agree\n") == (mistake == "none")


def test_places_and_half_precision(tmp_path: Path) -> None:
    flags = ["-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
    program = compile_all([HERE / "places.cpp"], flags, tmp_path / "places")
    result = subprocess.run([program], capture_output=True, text=True)
    assert result.stdout == "all agree\n", result.stdout + result.stderr[-2000:]
