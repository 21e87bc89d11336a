"""The torch-free kernels under sanitizers: random calls against plain loops, no report allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "g++")
SANITIZERS = {
    "memory": ("address,undefined", "1"),
    "threads": ("thread", "3"),
}
# A level the machine lacks falls back to the best it has.
LEVELS = ("baseline", "avx2", "avx512")
ROUNDS = 4


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_no_wrong_number_and_no_report(sanitizer: str, tmp_path: Path) -> None:
    checks, threads = SANITIZERS[sanitizer]
    program = str(tmp_path / "fuzz")
    sources = [*sorted((ROOT / "csrc" / "cpu").glob("isa*.cpp")), ROOT / "tests/native/fuzz.cpp"]
    flags = ["-std=c++20", "-O1", "-g1", "-ffp-contract=fast", "-fno-sanitize-recover=all"]
    command = [COMPILER, *flags, f"-fsanitize={checks}", *map(str, sources), "-o", program]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    for seed, level in enumerate(LEVELS):
        result = subprocess.run(
            [program, str(seed), str(ROUNDS), threads],
            capture_output=True,
            text=True,
            env={**os.environ, "LAPKERNELS_SIMD": level},
        )
        assert result.returncode == 0, result.stdout + result.stderr[-4000:]
        assert result.stdout.startswith(f"{ROUNDS} rounds agree")
