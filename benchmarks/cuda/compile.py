"""Compiles the CUDA kernels to machine code and reads what each uses from nvcc's report.

`python -m benchmarks.cuda.compile` prints a table. Needs nvcc, and no GPU.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# PTX as setup.py has it, and the architectures that it becomes machine code for.
_MACHINES = {"75": ("75",), "80": ("80", "86", "89", "90", "100", "120")}
ARCHITECTURES = tuple(arch for archs in _MACHINES.values() for arch in archs)

# Warps, blocks and bytes of shared memory that a multiprocessor holds, and bytes it keeps a block.
_LIMITS = {
    "75": (32, 16, 64 << 10, 0),
    "80": (64, 32, 164 << 10, 1 << 10),
    "86": (48, 16, 100 << 10, 1 << 10),
    "89": (48, 24, 100 << 10, 1 << 10),
    "90": (64, 32, 228 << 10, 1 << 10),
    "100": (64, 32, 228 << 10, 1 << 10),
    "120": (48, 24, 100 << 10, 1 << 10),
}
_REGISTERS = 65536  # of a multiprocessor, on all of these

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Kernel:
    """One instance of a kernel, compiled for one architecture; sizes are in bytes."""

    arch: str
    name: str
    registers: int
    shared: int
    stack: int
    spilled: int

    @property
    def stem(self) -> str:
        return self.name.partition("<")[0]

    @property
    def threads(self) -> int:
        """Threads in a block, as the launcher has it."""
        if "16, 64" in self.name:
            return 64
        return 128 if self.stem in ("window_squared_sum", "position_sums") else 256

    @property
    def occupancy(self) -> float:
        """Resident warps over the most a multiprocessor holds."""
        most_warps, most_blocks, memory, kept = _LIMITS[self.arch]
        warps = self.threads // 32
        granted = -(-self.registers * 32 // 256) * 256
        blocks = min(
            most_blocks,
            most_warps // warps,
            _REGISTERS // (granted * warps),
            memory // (self.shared + kept) if self.shared + kept else most_blocks,
        )
        return blocks * warps / most_warps


def nvcc() -> str | None:
    """The CUDA compiler, or None."""
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=f"{home}/bin" if home else None)


@functools.cache
def compiled_kernels(archs: Collection[str] = ARCHITECTURES) -> list[Kernel]:
    """All kernels, compiled for some architectures as the library is, sorted by name."""
    # Other files only put tasks together, and have no device code.
    sources = [p for p in sorted(ROOT.glob("csrc/cuda/**/*.cu")) if "launch(" in p.read_text()]
    chosen = {v: [arch for arch in own if arch in archs] for v, own in _MACHINES.items()}
    jobs = [(source, v, own) for source in sources for v, own in chosen.items() if own]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = list(pool.map(lambda job: _compile(job[0], job[1], job[2], folder), jobs))
    found = [kernel for report in reports for kernel in _parse(report)]
    return sorted(found, key=lambda kernel: (kernel.name, int(kernel.arch)))


def _compile(source: Path, virtual: str, archs: Sequence[str], folder: str) -> str:
    compiler = nvcc()
    assert compiler is not None, "there is no nvcc"
    machines = ",".join(f"sm_{arch}" for arch in archs)
    command = [compiler, "-std=c++20", "-O3", "-fatbin", "-Xptxas", "-v"]
    command += [f"-gencode=arch=compute_{virtual},code=[{machines}]"]
    command += [str(source), "-o", f"{folder}/{source.stem}-{virtual}.fatbin"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stderr


def _parse(report: str) -> list[Kernel]:
    found = []
    pieces = _ENTRY.split(report)[1:]
    if not pieces:
        return found
    names = _readable(pieces[::3])
    for name, arch, text in zip(names, pieces[1::3], pieces[2::3], strict=True):
        frame, used, shared = _FRAME.search(text), _USED.search(text), _SHARED.search(text)
        assert frame is not None and used is not None, text
        memory = int(shared[1]) if shared else 0
        spilled = int(frame[2]) + int(frame[3])
        found.append(Kernel(arch, name, int(used[1]), memory, int(frame[1]), spilled))
    return found


def _readable(mangled: Sequence[str]) -> list[str]:
    """Names as in the sources: kernel<element type, ...>."""
    names = subprocess.run(["c++filt", *mangled], capture_output=True, text=True, check=True)
    found = []
    for line in names.stdout.splitlines():
        text = line.partition("(")[0].removeprefix("void ").replace("lapkernels::cuda::", "")
        found.append(text.replace("_kernel<", "<").replace("> >", ">>"))
    return found


def table() -> Iterator[str]:
    """Markdown: threads and shared bytes; registers and occupancy on each architecture."""
    by_name: dict[str, dict[str, Kernel]] = {}
    for kernel in compiled_kernels():
        by_name.setdefault(kernel.name, {})[kernel.arch] = kernel
    yield "| kernel | threads | shared | " + " | ".join(f"sm_{a}" for a in ARCHITECTURES) + " |"
    yield "|---|---|---|" + "---|" * len(ARCHITECTURES)
    for name, found in by_name.items():
        cells = [f"{found[a].registers}, {found[a].occupancy:.0%}" for a in ARCHITECTURES]
        shared = max(kernel.shared for kernel in found.values())
        yield f"| `{name}` | {found['80'].threads} | {shared} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print("\n".join(table()))
