"""Wheels, built here and put beside a torch without CUDA: they import and work with nothing else.

No GPU takes part, and building the CUDA kernels needs nvcc alone.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.cuda.compile import nvcc
from lapkernels.ops import OPS
from tests import programs
from tests.programs import ROOT

CALL = """
import torch, lapkernels as lk
s, x, variance = torch.ones(2, 3, 7, 4), torch.ones(3, 7, 5), torch.ones(4, 5)
with lk.use_backend("cpp"):
    print(lk.__file__, float(lk.ops.jacobian_gram(s, x, variance, lk.ops.Geometry())[0, 0, 0]))
"""


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    done = programs.run(*command, cwd=cwd, fresh=True, **environment)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def tree(folder: Path) -> Path:
    """What a wheel is made from, without what earlier builds left."""
    left = shutil.ignore_patterns("__pycache__", "_native*", "_build.json", "*.egg-info")
    shutil.copytree(ROOT / "lapkernels", folder / "lapkernels", ignore=left)
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


def needed(library: Path) -> set[str]:
    """Names of the libraries that the loader must find before this one."""
    return set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", run("readelf", "-d", library)))


def build(cuda: bool, folder: Path) -> Path:
    """A wheel of this tree, with CUDA kernels for one architecture or without."""
    run(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
        "--wheel-dir", folder, tree(folder / "tree"),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        LAPKERNELS_REQUIRE_EXTENSION="1", LAPKERNELS_CUDA=str(int(cuda)),
        LAPKERNELS_CUDA_ARCHS="80",
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


def assert_works_alone(wheel: Path, cuda: bool, site: Path) -> None:
    """Installed into ``site``, it runs with an empty path and no GPU in sight."""
    assert ("+cu" in wheel.name) == cuda and "-cp310-abi3-" in wheel.name
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel)
    (library,) = site.glob("lapkernels/_native*.so")
    system = {"libc", "libm", "libstdc++", "libgcc_s", "libdl", "librt", "libpthread"}
    torchs = re.compile("libc10$|libtorch(_cpu|_python)?$|ld-linux")
    assert [name for name in needed(library) - system if not torchs.match(name)] == []

    # Every symbol is to be found when the library is loaded.
    bare = {"PYTHONPATH": str(site), "PATH": "", "CUDA_VISIBLE_DEVICES": "", "LD_BIND_NOW": "1"}
    found = run(sys.executable, "-c", CALL, cwd=site, **bare).split()
    assert found == [str(site / "lapkernels" / "__init__.py"), "980.0"]
    info = run(sys.executable, "-m", "lapkernels", "info", cwd=site, **bare)
    (line,) = [line for line in info.splitlines() if line.startswith("CUDA kernels")]
    assert line.endswith(f" {len(OPS)} ops" if cuda else "not built"), line


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("readelf") is None, reason="there are no binutils")
@pytest.mark.parametrize(
    "cuda",
    [False, pytest.param(True, marks=pytest.mark.skipif(nvcc() is None, reason="no nvcc"))],
    ids=["cpu", "cuda"],
)
def test_wheel_works_with_neither_cuda_nor_a_compiler(cuda: bool, tmp_path: Path) -> None:
    assert_works_alone(build(cuda, tmp_path), cuda, tmp_path / "site")
