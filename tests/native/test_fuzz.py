"""The torch-free kernels under sanitizers: random calls against plain loops, no report allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "g++")
LEVELS = {"DEFAULT": "baseline", "AVX2": "avx2", "AVX512": "avx512"}
BEST = LEVELS.get(torch.backends.cpu.get_cpu_capability(), "baseline")

# A program has one SIMD level, since the compiler takes most of the time. Values are threads and
# rounds; every fourth round has large layers, which take minutes with several threads.
QUICK = {("address,undefined", BEST): (1, 4)}
SLOW = {("address,undefined", "baseline"): (1, 4), ("thread", BEST): (3, 3)}


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(
    ("sanitizer", "level", "threads", "rounds"),
    [(*key, *counts) for key, counts in QUICK.items()]
    + [
        pytest.param(*key, *counts, marks=pytest.mark.slow)
        for key, counts in SLOW.items()
        if key not in QUICK
    ],
)
def test_no_wrong_number_and_no_report(
    sanitizer: str, level: str, threads: int, rounds: int, tmp_path: Path
) -> None:
    program = str(tmp_path / "fuzz")
    sources = [ROOT / f"csrc/cpu/isa_{level}.cpp", ROOT / "tests/native/fuzz.cpp"]
    flags = ["-std=c++20", "-O1", "-g0", "-ffp-contract=fast", "-fno-sanitize-recover=all"]
    flags += [f"-fsanitize={sanitizer}", f"-DFUZZ_LEVEL={level}"]
    # What the first sanitizer sees too; checks of every address double the compiler's time.
    flags += ["-fno-sanitize=null,alignment,object-size,pointer-overflow"]
    command = [COMPILER, *flags, *map(str, sources), "-o", program]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    result = subprocess.run(
        [program, "0", str(rounds), str(threads)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert result.stdout == f"{rounds} rounds agree ({level})\n"
