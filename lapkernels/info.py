"""`python -m lapkernels info`: what is installed here, and which backend serves each op."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version

import numpy
import torch

import lapkernels
from lapkernels.kernels import NATIVE, OpReport, current_backend, report, simd_level, triton
from lapkernels.kernels.native import build_record, cuda_ops
from lapkernels.kernels.selector import BY_SHAPE
from lapkernels.ops import OPS, serving


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of the report."""
    parser = argparse.ArgumentParser(prog="python -m lapkernels info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--require",
        metavar="BACKEND",
        help="fail unless this backend, cpp for example, serves every op on some device",
    )
    arguments = parser.parse_args(argv)
    rows = report(sorted(OPS))
    if arguments.json:
        found = {"facts": facts(), "ops": [asdict(row) for row in rows], "choices": choices()}
        print(json.dumps(found, indent=2))
    else:
        tables = [*aligned(facts()), "", *op_table(rows), "", *shape_table(), "", *choice_table()]
        print("\n".join(tables))
    if arguments.require is not None:
        check_served(rows, arguments.require)


def check_served(rows: Sequence[OpReport], backend: str) -> None:
    """Raise unless the backend serves every op on some device."""
    served = {row.op for row in rows if row.backend == backend}
    missing = sorted({row.op for row in rows} - served)
    if missing:
        raise RuntimeError(f"the backend {backend!r} does not serve {', '.join(missing)}")


def facts() -> dict[str, str]:
    """Versions, machine, library and build record."""
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
    return rows


def aligned(rows: Mapping[str, str]) -> list[str]:
    """One line for each entry."""
    width = max(map(len, rows))
    return [f"{name:<{width}}  {value}" for name, value in rows.items()]


def _triton() -> str:
    reason = triton.absent()
    if reason is not None:
        return reason
    return version("triton") + (", interpreted" if triton.interpreted() else "")


def shape_table() -> list[str]:
    """What a backend cannot do though it has the op: the next one in line serves that."""
    return _in_columns([("does not serve", "op", "where"), *BY_SHAPE])


def choices() -> list[dict[str, str]]:
    """What serves where sizes decide: the rows of ``ops.serving.TABLE``."""
    columns = ("ops", "by", "where", "measured")
    return [{name: getattr(row, name) for name in columns} for row in serving.TABLE.values()]


def choice_table() -> list[str]:
    """One line for each of them."""
    head = ("op", "under auto served by", "where", "measured on")
    return _in_columns([head, *[tuple(row.values()) for row in choices()]])


def op_table(rows: list[OpReport]) -> list[str]:
    """One line for each op and device: who serves it, and why no other backend does."""
    table = [("op", "device", "backend", "why no other")]
    for row in rows:
        reasons = "; ".join(f"{backend}: {reason}" for backend, reason in row.reasons.items())
        table.append((row.op, row.device, row.backend or "none (raises)", reasons))
    return _in_columns(table)


def _in_columns(table: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
