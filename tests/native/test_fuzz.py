"""The torch-free kernels under sanitizers: random calls against plain loops, no report allowed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from tests.native.build import compile_fuzz, needs_compiler

ROOT = Path(__file__).parents[2]
LEVELS = {"DEFAULT": "baseline", "AVX2": "avx2", "AVX512": "avx512"}
BEST = LEVELS.get(torch.backends.cpu.get_cpu_capability(), "baseline")

# A program has one SIMD level, since the compiler takes most of the time. Values are threads and
# rounds; every fourth round has large layers, which take minutes with several threads.
QUICK = {("address,undefined", BEST): (1, 6)}
SLOW = {("address,undefined", "baseline"): (1, 4), ("thread", BEST): (3, 3)}


@needs_compiler
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
    # What the first sanitizer sees too; checks of every address double the compiler's time.
    checks = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    checks += ["-fno-sanitize=null,alignment,object-size,pointer-overflow"]
    kernels = ROOT / f"csrc/cpu/isa/{level}.cpp"
    program = compile_fuzz(kernels, checks, [f"-DFUZZ_LEVEL={level}"], tmp_path)
    result = subprocess.run(
        [program, "0", str(rounds), str(threads)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert result.stdout == f"{rounds} rounds agree ({level})\n"
