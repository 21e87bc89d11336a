"""Measured documents: a title, the machine, and tables, written to one Markdown file."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from lapkernels.kernels import simd_level


def machine() -> list[str]:
    """What the figures were measured on."""
    facts = {
        "CPU": f"{_processor()}, {os.cpu_count()} cores",
        "SIMD level of the kernels": simd_level() or "none: reference backend",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "Python": platform.python_version(),
    }
    return [f"- {name}: {value}" for name, value in facts.items()]


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; all columns but the first to the right."""
    rule = ["---", *("--:" for _ in head[1:])]
    return ["| " + " | ".join(row) + " |" for row in (head, rule, *rows)]


def write(out: Path, title: str, command: str, parts: Sequence[str]) -> None:
    """Write the document, with the command that makes it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"# {title}", "", f"Written by `{command}`.", "", *machine(), "", *parts]
    out.write_text("\n".join(lines) + "\n")
    print(out)
