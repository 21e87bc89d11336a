"""What every Triton kernel takes on every device it is meant for, without one of them.

    python -m benchmarks.triton.sheet                           a table for float32
    python -m benchmarks.triton.sheet --json sm_80-float32      rows for one target and dtype, or
                                                                tf32 or tf32x3: float32 that is
                                                                multiplied so

Run it without TRITON_INTERPRET: the interpreter compiles nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any
from unittest import mock

import torch

from benchmarks.triton.compiled import TARGETS, compile_launch
from benchmarks.triton.instances import SHAPES, recorded

# What torch.set_float32_matmul_precision calls products other than those of IEEE.
PRECISIONS = {"tf32x3": "high", "tf32": "medium"}
# Registers of a multiprocessor, bytes of shared memory, threads: the limits of occupancy on sm_80.
REGISTERS, SHARED, THREADS, BLOCKS = 65536, 167936, 2048, 32


def rows(target: str, dtype: str, every_tile: bool = False) -> list[dict[str, Any]]:
    """One row for each kernel and tile: the most of all shapes that launch it."""
    hip = target.startswith("gfx")
    torch.set_float32_matmul_precision(PRECISIONS.get(dtype, "highest"))
    kind = torch.float32 if dtype in PRECISIONS else getattr(torch, dtype)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    done: set[tuple[str, ...]] = set()
    for shape in SHAPES:
        for launch in recorded(shape, kind, hip):
            with mock.patch.object(torch.version, "hip", "6.0" if hip else None):
                tiles = launch.kernel.tiles(launch.arguments)
            for tile in tiles if every_tile else tiles[:1]:
                constants = " x ".join(map(str, tile.constants.values()))
                key = (launch.variant, constants)
                row = found.setdefault(
                    key,
                    {
                        "kernel": launch.variant, "tile": constants, "target": target,
                        "dtype": dtype, "warps": tile.warps, "ops": [],
                        "registers": 0, "spills": 0, "shared": 0,
                    },
                )  # fmt: skip
                row["ops"] = sorted({*row["ops"], shape.op})
                # Sizes of what goes over memory once are no part of a kernel.
                label = "" if "entries" in shape.label else shape.label
                if (*key, shape.name, label) in done:
                    continue
                done.add((*key, shape.name, label))
                used = compile_launch(launch, tile, target)
                for name in ("registers", "spills", "shared"):
                    row[name] = max(row[name], getattr(used, name))
    return [{**row, "ops": ", ".join(row["ops"])} for row in found.values()]


def occupancy(row: dict[str, Any]) -> float:
    """Share of a multiprocessor's threads that may be resident, on sm_80."""
    threads = row["warps"] * 32
    blocks = min(
        REGISTERS // (threads * -(-row["registers"] // 8) * 8),
        SHARED // (row["shared"] + 1024),
        THREADS // threads,
        BLOCKS,
    )
    return blocks * threads / THREADS


def _used(row: dict[str, Any]) -> str:
    spilled = f", {row['spills']} spilled" if row["spills"] else ""
    return f"{row['registers']}, {row['shared']}{spilled}"


def table() -> Iterable[str]:
    """Markdown: registers and shared bytes on every target, occupancy on sm_80, for float32."""
    yield "| kernel | serves | tile, warps | " + " | ".join(TARGETS) + " | occupancy sm_80 |"
    yield "|---|---|---|" + "---|" * (len(TARGETS) + 1)
    of_target = {target: rows(target, "float32") for target in TARGETS}
    for row in of_target["sm_80"]:
        cells = []
        for found in of_target.values():
            same = [r for r in found if (r["kernel"], r["tile"]) == (row["kernel"], row["tile"])]
            cells.append(", ".join(_used(r) for r in same))
        what = f"| {row['kernel']} | {row['ops']} | {row['tile'] or 'by size'}, {row['warps']} | "
        yield what + " | ".join(cells) + f" | {occupancy(row):.0%} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="TARGET-DTYPE", help="print the rows of one instance")
    parser.add_argument(
        "--every-tile", action="store_true", help="not the first of each kernel only"
    )
    arguments = parser.parse_args()
    if arguments.json:
        target, _, dtype = arguments.json.partition("-")
        print(json.dumps(rows(target, dtype, arguments.every_tile)))
    else:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
