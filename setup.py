"""Builds `lapkernels/_native`, one shared library of all compiled kernels.

The package works without the library (the reference backend serves every op), so nothing that goes
wrong here fails an installation: what happened is written to `lapkernels/_build.json`, which
`python -m lapkernels info` shows. Environment variables change that:

    LAPKERNELS_NO_EXTENSION=1        do not compile anything
    LAPKERNELS_REQUIRE_EXTENSION=1   fail if the library cannot be built

CUDA kernels are part of it if torch was built with CUDA and there is an nvcc; no GPU is needed.

    LAPKERNELS_CUDA=1                compile them for a torch without CUDA too
    LAPKERNELS_CUDA=0                leave them out
    LAPKERNELS_CUDA_ARCHS="80 90"    for these architectures only
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    torch = None
    cpp_extension = None
    TORCH_MISSING = f"torch cannot be imported by the build: {error}"
else:
    TORCH_MISSING = None

ROOT = Path(__file__).parent.resolve()
BuildExtension: type[Any] = cpp_extension.BuildExtension if cpp_extension else build_ext

# 0x020a...: use nothing newer than the stable ABI of torch 2.10.
DEFINES = ["-DTORCH_TARGET_VERSION=0x020a000000000000"]
# No -march: the sources choose AVX-512, AVX2 or baseline at run time, so the binary runs anywhere.
# -g0 undoes the -g that many Pythons pass on to their extensions.
CXX_FLAGS = [
    "-std=c++20",
    "-O3",
    "-g0",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fvisibility=hidden",
]
NVCC_FLAGS = ["-std=c++20", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden"]
CUDA_ARCHS = "75 80 86 89 90 100 120"


def sources(pattern: str) -> list[str]:
    """Paths relative to the project, as setuptools wants them, in an order that does not vary."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


def cpp_sources() -> list[str]:
    """The CPU kernels, and the registration of kernels for all devices."""
    return sources("csrc/ops/*.cpp") + sources("csrc/cpu/isa/*.cpp")


def requested(variable: str) -> bool:
    """Whether an environment variable asks for something."""
    return os.environ.get(variable, "0") not in ("", "0")


def cxx_compiler() -> str:
    """The C++ compiler that setuptools will call."""
    command = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    return shlex.split(command)[0]


def nvcc() -> str | None:
    """The CUDA compiler, or None if there are to be no CUDA kernels."""
    has_cuda = torch is not None and torch.version.cuda is not None
    if not (requested("LAPKERNELS_CUDA") or (has_cuda and "LAPKERNELS_CUDA" not in os.environ)):
        return None
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=f"{home}/bin" if home else None)


def gencode(archs: list[str]) -> list[str]:
    """Machine code for each architecture, and PTX from which newer GPUs make theirs.

    The kernels use nothing that is newer than sm_80, so all from there on share one PTX.
    """
    old = [arch for arch in archs if int(arch) < 80]
    new = [f"sm_{arch}" for arch in archs if int(arch) >= 80]
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in old]
    if new:
        return [*codes, f"-gencode=arch=compute_80,code=[{','.join(new)},compute_80]"]
    return [*codes, f"-gencode=arch=compute_{old[-1]},code=compute_{old[-1]}"]


def cuda_objects(folder: Path, compiler: str) -> list[str]:
    """Compiles the CUDA sources that changed; they know no torch, so nvcc alone does it."""
    folder.mkdir(parents=True, exist_ok=True)
    archs = os.environ.get("LAPKERNELS_CUDA_ARCHS", CUDA_ARCHS).split()
    codes = gencode(archs)
    headers = [
        *ROOT.glob("csrc/*.h"),
        *ROOT.glob("csrc/cuda/**/*.h"),
        *ROOT.glob("csrc/cuda/**/*.cuh"),
    ]
    newest = max(path.stat().st_mtime for path in headers)

    def build(source: Path) -> str:
        target = folder / f"{source.stem}-{'-'.join(archs)}.o"
        since = max(newest, source.stat().st_mtime)
        if not target.exists() or target.stat().st_mtime < since:
            command = [compiler, "-c", *NVCC_FLAGS, *codes, str(source), "-o", str(target)]
            subprocess.run(command, check=True)
        return str(target)

    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)) as pool:
        return list(pool.map(build, sorted(ROOT.glob("csrc/cuda/**/*.cu"))))


def cuda_runtime(compiler: str) -> list[str]:
    """Link flags of the CUDA runtime, static, so that the library loads where there is none."""
    plan = subprocess.run([compiler, "--dryrun", "x.cu"], capture_output=True, text=True).stderr
    folders = re.findall(r'"-L(.*?)"', plan)
    return [*(f"-L{folder}" for folder in folders), "-lcudart_static", "-ldl", "-lrt", "-lpthread"]


def reason_not_to_build() -> str | None:
    """Why compiling should not even be tried, or None."""
    if requested("LAPKERNELS_NO_EXTENSION"):
        return "LAPKERNELS_NO_EXTENSION was set during installation"
    if TORCH_MISSING is not None:
        return TORCH_MISSING
    if os.name == "nt":
        return "the kernels have no Windows build yet"
    if not cpp_sources():
        return "there are no sources in csrc"
    if shutil.which(cxx_compiler()) is None:
        return f"the C++ compiler {cxx_compiler()!r} was not found"
    return None


def native_extension() -> Extension:
    """The one extension; without torch only its name counts, since nothing is compiled."""
    if cpp_extension is None:
        return Extension("lapkernels._native", sources=[])
    defines = [*DEFINES, *(["-DLAPKERNELS_WITH_CUDA"] if nvcc() else [])]
    return cpp_extension.CppExtension(
        "lapkernels._native",
        cpp_sources(),
        include_dirs=[str(ROOT / "csrc")],
        depends=[*sources("csrc/**/*.h"), "setup.py"],
        extra_compile_args={"cxx": CXX_FLAGS + defines},
        # The library has no Python in it, so one file serves every Python version.
        py_limited_api=True,
    )


class BuildNative(BuildExtension):
    """Builds the library if it can, and writes down what happened either way."""

    def run(self) -> None:
        reason = reason_not_to_build()
        if reason is None:
            try:
                self.add_cuda()
                super().run()
            except Exception as error:
                if requested("LAPKERNELS_REQUIRE_EXTENSION"):
                    raise
                reason = (
                    f"compilation failed (pip install -v shows the compiler's messages): {error}"
                )
        if reason is not None:
            if requested("LAPKERNELS_REQUIRE_EXTENSION"):
                raise SystemExit(f"lapkernels: LAPKERNELS_REQUIRE_EXTENSION is set, but {reason}")
            self.leave_out(reason)
        self.write_record(reason)

    def add_cuda(self) -> None:
        """Compiles the CUDA kernels, if there are to be any, and adds them to the library."""
        compiler = nvcc()
        if compiler is not None:
            (extension,) = self.extensions
            extension.extra_objects = cuda_objects(Path(self.build_temp) / "cuda", compiler)
            extension.extra_link_args = cuda_runtime(compiler)

    def leave_out(self, reason: str) -> None:
        """Goes on without the library: also without one left by an earlier build."""
        for folder in self.package_folders():
            for stale in folder.glob("_native*.so"):
                stale.unlink()
        self.extensions = []
        print(
            f"lapkernels: installing without compiled kernels ({reason}). "
            "Everything works on the reference backend, but more slowly.",
            file=sys.stderr,
        )

    def package_folders(self) -> list[Path]:
        """Where the package is being put together: the build folder, the source tree, or both."""
        in_place = self.inplace or getattr(self, "editable_mode", False)
        return [Path(self.build_lib) / "lapkernels", *([ROOT / "lapkernels"] if in_place else [])]

    def write_record(self, reason: str | None) -> None:
        """Writes the record of this build beside the library it describes."""
        record = {
            "success": reason is None,
            "reason": reason,
            "compiler": cxx_compiler(),
            "flags": CXX_FLAGS + DEFINES,
            "cuda": reason is None and nvcc() is not None,
            "torch": None if torch is None else torch.__version__,
        }
        folder = self.package_folders()[-1]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "_build.json").write_text(json.dumps(record, indent=2) + "\n")


def version_tag() -> dict[str, dict[str, str]]:
    """A wheel with CUDA kernels says so, `+cu13` for CUDA 13; the driver must be as new."""
    compiler = nvcc()
    if compiler is None or reason_not_to_build() is not None:
        return {}
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    (major,) = re.findall(r"release (\d+)", said)
    return {"egg_info": {"tag_build": f"+cu{major}"}}


setup(
    ext_modules=[native_extension()],
    cmdclass={"build_ext": BuildNative},
    options={"bdist_wheel": {"py_limited_api": "cp310"}, **version_tag()},
)
