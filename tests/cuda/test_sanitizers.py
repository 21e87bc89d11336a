"""Every CUDA kernel under sanitizers: random calls against plain loops, no report allowed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cuda.build import FLAGS, HERE
from tests.native.build import compile_fuzz, needs_compiler

# The second runs every CUDA thread as a thread of its own, so that a missing barrier is a race.
MEMORY = ["-fsanitize=address,undefined"], []
THREADS = ["-fsanitize=thread"], ["-DEMULATOR_THREADS"]


# With "flat" all layers are linear, and a round is eight calls of kernels: vectors along samples.
@needs_compiler
@pytest.mark.parametrize(
    ("sanitizer", "arguments"),
    [
        pytest.param(MEMORY, ["6"], id="memory"),
        pytest.param(THREADS, ["1"], id="threads"),
        pytest.param(MEMORY, ["625", "1", "flat"], id="memory-flat", marks=pytest.mark.slow),
        pytest.param(THREADS, ["25", "1", "flat"], id="threads-flat", marks=pytest.mark.slow),
    ],
)
def test_no_wrong_number_and_no_report(
    sanitizer: tuple[list[str], list[str]], arguments: list[str], tmp_path: Path
) -> None:
    checks, flags = sanitizer
    program = compile_fuzz(
        HERE / "emulated_kernels.cpp",
        [*checks, "-fno-sanitize-recover=all"],
        [*FLAGS, "-DFUZZ_EMULATED", *flags],
        tmp_path,
    )
    result = subprocess.run([program, "0", *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert result.stdout == f"{arguments[0]} rounds agree (cuda)\n"
