"""Compiles the CUDA sources for a CPU, with the emulator in place of CUDA."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.native.build import COMPILER

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
FLAGS = ["-std=c++20", "-ffp-contract=fast", "-Wno-unknown-pragmas", f"-I{HERE}"]


def compile_all(sources: Sequence[Path], flags: Sequence[str], target: Path) -> Path:
    """One call of the compiler; its messages are the failure's."""
    command = [COMPILER, *FLAGS, *map(str, sources), *flags, "-o", str(target)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    return target


def library() -> Path:
    """The shared library of emulated ops, built once for the sources as they are.

    It is kept in the system's temporary folder, under a hash of all it is made from.
    """
    texts = sorted([*ROOT.glob("csrc/**/*"), *HERE.glob("*.h"), *HERE.glob("*.cpp")])
    digest = hashlib.sha256(torch.__version__.encode())
    for path in texts:
        if path.is_file():
            digest.update(path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"lapkernels-emulated-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    target = folder / f"{digest.hexdigest()[:24]}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            for old in folder.glob("*.so"):
                old.unlink()
            _build(target)
    return target


def _build(target: Path) -> None:
    home = Path(torch.__file__).parent
    flags = [
        "-O1",
        "-fPIC",
        "-shared",
        "-DLAPKERNELS_EMULATED",
        "-DLAPKERNELS_LIBRARY=lapkernels_emulated",
        "-DTORCH_TARGET_VERSION=0x020a000000000000",
        f"-I{home / 'include'}",
        f"-L{home / 'lib'}",
        "-ltorch_cpu",
    ]
    sources = [HERE / "emulated_kernels.cpp", HERE / "emulated_ops.cpp"]
    partial = target.with_suffix(f".{os.getpid()}")
    compile_all(sources, flags, partial)
    partial.rename(target)
