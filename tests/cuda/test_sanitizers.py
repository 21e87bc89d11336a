"""Every CUDA kernel under sanitizers: random calls against plain loops, no report allowed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cuda.build import HERE, ROOT, compile_all, needs_compiler

# The second runs every CUDA thread as a thread of its own, so that a missing barrier is a race.
SANITIZERS = {
    "memory": (["-O1", "-fsanitize=address,undefined"], "6"),
    "threads": (["-O0", "-fsanitize=thread", "-DEMULATOR_THREADS"], "1"),
}


@needs_compiler
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_no_wrong_number_and_no_report(sanitizer: str, tmp_path: Path) -> None:
    checks, rounds = SANITIZERS[sanitizer]
    sources = [HERE / "emulated_kernels.cpp", ROOT / "tests/native/fuzz.cpp"]
    flags = ["-g1", "-DFUZZ_EMULATED", "-fno-sanitize-recover=all", *checks]
    program = compile_all(sources, flags, tmp_path / "fuzz")
    result = subprocess.run([program, "0", rounds], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert result.stdout == f"{rounds} rounds agree (cuda)\n"
