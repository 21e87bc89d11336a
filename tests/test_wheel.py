"""A wheel with CUDA kernels, built here: it imports and works with neither CUDA nor a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cuda.compile import nvcc
from lapkernels.ops import OPS

ROOT = Path(__file__).parents[1]
CALL = """
import torch, lapkernels as lk
s, x, variance = torch.ones(2, 3, 7, 4), torch.ones(3, 7, 5), torch.ones(4, 5)
with lk.use_backend("cpp"):
    print(lk.__file__, float(lk.ops.jacobian_gram(s, x, variance, lk.ops.Geometry())[0, 0, 0]))
"""


def run(*command: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAPKERNELS_")}
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(nvcc() is None, reason="there is no nvcc")
@pytest.mark.parametrize("cuda", ["0", "1"], ids=["cpu", "cuda"])
def test_wheel_works_without_cuda_or_compiler(cuda: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    wanted = shutil.ignore_patterns("__pycache__", "_native*", "_build.json", "*.egg-info")
    shutil.copytree(ROOT / "lapkernels", tree / "lapkernels", ignore=wanted)
    shutil.copytree(ROOT / "csrc", tree / "csrc")
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tree)
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    pip = [sys.executable, "-m", "pip"]
    run(
        *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(tree),
        LAPKERNELS_REQUIRE_EXTENSION="1", LAPKERNELS_CUDA=cuda, LAPKERNELS_CUDA_ARCHS="80",
        PATH=tools,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    assert ("+cu" in wheel.name) == (cuda == "1") and "abi3" in wheel.name
    run(*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel))

    # Nothing on the path, and no GPU to see.
    bare = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "", "CUDA_VISIBLE_DEVICES": ""}
    python = [sys.executable, "-P"]
    assert run(*python, "-c", CALL, **bare).split() == [
        str(tmp_path / "site" / "lapkernels" / "__init__.py"),
        "980.0",
    ]
    info = run(*python, "-m", "lapkernels", "info", **bare)
    (line,) = [line for line in info.splitlines() if line.startswith("CUDA kernels")]
    assert line.endswith(f" {len(OPS)} ops" if cuda == "1" else "not built"), line
