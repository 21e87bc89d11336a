"""`python -m lapkernels info`: what is installed here, and which backend serves each op."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import numpy
import torch

import lapkernels
from lapkernels.kernels import NATIVE, OpReport, current_backend, report, simd_level, triton
from lapkernels.kernels.native import build_record, cuda_ops
from lapkernels.ops import OPS


def main() -> None:
    """Prints the report."""
    print("\n".join([*facts(), "", *op_table(report(sorted(OPS)))]))


def facts() -> list[str]:
    """Versions, machine, library and build record, one aligned line each."""
    record = build_record()
    rows = {
        "lapkernels": lapkernels.__version__,
        "python": platform.python_version(),
        "torch": f"{torch.__version__} (CUDA {torch.version.cuda or 'not built in'})",
        "numpy": numpy.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} torch threads",
        "CUDA device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "backend": current_backend(),
        "library": str(NATIVE.path) if NATIVE.path else f"not loaded: {NATIVE.reason}",
        "CUDA kernels": f"{len(cuda_ops())} ops" if cuda_ops() else "not built",
        "triton": _triton(),
        "SIMD level": simd_level() or "not known without the library",
    }
    if record is None:
        rows["build"] = "no record"
    else:
        outcome = "compiled" if record["success"] else f"not compiled: {record['reason']}"
        rows["build"] = f"{outcome}; compiler {record['compiler']}, torch {record['torch']}"
        rows["flags"] = " ".join(record["flags"])
    width = max(map(len, rows))
    return [f"{name:<{width}}  {value}" for name, value in rows.items()]


def _triton() -> str:
    reason = triton.absent()
    if reason is not None:
        return reason
    return version("triton") + (", interpreted" if triton.interpreted() else "")


def op_table(rows: list[OpReport]) -> list[str]:
    """One line for each op and device: who serves it, and why no other backend does."""
    table = [("op", "device", "backend", "why no other")]
    for row in rows:
        reasons = "; ".join(f"{backend}: {reason}" for backend, reason in row.reasons.items())
        table.append((row.op, row.device, row.backend or "none (raises)", reasons))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
