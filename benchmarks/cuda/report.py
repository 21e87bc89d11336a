"""Writes docs/cuda_kernels.md: `python -m benchmarks.cuda.report`. Needs nvcc, and no GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cuda.compile import ROOT, Kernel, compiled_kernels, nvcc
from benchmarks.cuda.roofline import COSTS, SHAPES

TEMPLATE = Path(__file__).with_name("template.md")
TARGET = ROOT / "docs" / "cuda_kernels.md"


def main() -> None:
    """Compiles all kernels for all architectures and writes the page."""
    write(compiled_kernels())


def write(kernels: Sequence[Kernel]) -> None:
    """Fills in the tables of the page."""
    text = TEMPLATE.read_text()
    tables = {
        "USE": use_table(kernels),
        "ROOFLINE": roofline_table(),
        "VERSION": [compiler_version()],
    }
    for name, lines in tables.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(lines))
    TARGET.write_text(text)


def use_table(kernels: Sequence[Kernel]) -> list[str]:
    """Registers and occupancy of every instance on every architecture, and its shared memory."""
    by_name: dict[str, dict[str, Kernel]] = {}
    archs = sorted({kernel.arch for kernel in kernels}, key=int)
    for kernel in kernels:
        by_name.setdefault(kernel.name, {})[kernel.arch] = kernel
    rows = []
    for name, found in sorted(by_name.items()):
        cells = [f"{found[arch].registers}, {found[arch].occupancy:.0%}" for arch in archs]
        shared = max(kernel.shared for kernel in found.values())
        threads = next(iter(found.values())).threads
        rows.append([f"`{name}`", str(threads), str(shared), *cells])
    return _table(["kernel", "threads", "shared", *(f"sm_{arch}" for arch in archs)], rows)


def roofline_table() -> list[str]:
    """Intensity, what bounds it, and the share of the roofline, for each op and shape."""
    rows = []
    for name, cost in COSTS.items():
        cells = [cost(shape) for shape in SHAPES]
        rows.append(
            [
                f"`{name}`" if "_" in name else name,
                *(f"{c.intensity:.3g}, {c.bound}, {c.share:.0%}" for c in cells),
            ]
        )
    return _table(["op", *(shape.name for shape in SHAPES)], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def compiler_version() -> str:
    """As nvcc says it."""
    compiler = nvcc()
    assert compiler is not None, "there is no nvcc"
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    return next(line for line in said.splitlines() if "release" in line).partition(", ")[2]


if __name__ == "__main__":
    main()
