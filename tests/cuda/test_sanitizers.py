"""Every CUDA kernel under sanitizers: random calls against plain loops, no report allowed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cuda.build import FLAGS, HERE
from tests.native.build import compile_fuzz, needs_compiler

# The second runs every CUDA thread as a thread of its own, so that a missing barrier is a race.
SANITIZERS = {
    "memory": (["-fsanitize=address,undefined"], [], "6"),
    "threads": (["-fsanitize=thread"], ["-DEMULATOR_THREADS"], "1"),
}


@needs_compiler
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_no_wrong_number_and_no_report(sanitizer: str, tmp_path: Path) -> None:
    checks, flags, rounds = SANITIZERS[sanitizer]
    program = compile_fuzz(
        HERE / "emulated_kernels.cpp",
        [*checks, "-fno-sanitize-recover=all"],
        [*FLAGS, "-DFUZZ_EMULATED", *flags],
        tmp_path,
    )
    result = subprocess.run([program, "0", rounds], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert result.stdout == f"{rounds} rounds agree (cuda)\n"
