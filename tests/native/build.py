"""Compiles random calls of kernels and the plain loops they are compared with."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

COMPILER = os.environ.get("CXX", "g++")
FUZZ = Path(__file__).parent / "fuzz.cpp"

needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason="there is no C++ compiler"
)


def compile_fuzz(
    kernels: Path, sanitizers: Sequence[str], flags: Sequence[str], folder: Path
) -> Path:
    """The program that has `kernels` under sanitizers.

    These are compiled as they are written, in half of the time; the plain loops, most of the
    program's, run as fast as may be.
    """
    program, objects = folder / "fuzz", [folder / "kernels.o", folder / "calls.o"]
    common = ["-std=c++20", "-ffp-contract=fast", *flags]
    for arguments in (
        [*common, *sanitizers, "-O0", "-g1", "-c", kernels, "-o", objects[0]],
        [*common, "-O2", "-c", FUZZ, "-o", objects[1]],
        [*sanitizers, *objects, "-o", program],
    ):
        built = subprocess.run([COMPILER, *map(str, arguments)], capture_output=True, text=True)
        assert built.returncode == 0, built.stderr[-4000:]
    return program
