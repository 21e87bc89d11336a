"""Work of the Triton kernels counted from their loops, against the least that an op needs.

A launch is modelled as the slowest of its arithmetic, its traffic with the second-level cache and
its traffic with memory, at an A100's peaks; launches of one op add up. Entries that a tile computes
in vain count as work, entries that it does not load do not count as traffic. Shared memory and
latency are not in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from benchmarks.triton.instances import CONVS, ENTRIES, Conv, Launch, Shape, recorded

# NVIDIA A100-SXM4-40GB: FP32 outside of tensor cores, memory, and second-level cache reads.
FLOPS, MEMORY, CACHE = 19.5e12, 1.555e12, 7.2e12
BYTES = 4


@dataclass(frozen=True)
class Work:
    """Floating-point operations, bytes between memory and cache, bytes loaded through the cache."""

    flops: float
    memory: float
    loads: float

    @property
    def seconds(self) -> float:
        return max(self.flops / FLOPS, self.memory / MEMORY, self.loads / CACHE)

    @property
    def limit(self) -> str:
        """What it takes longest for."""
        times = {
            "arithmetic": self.flops / FLOPS,
            "memory": self.memory / MEMORY,
            "cache": self.loads / CACHE,
        }
        return max(times, key=lambda name: times[name])


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _touched(arguments: Mapping[str, Any]) -> int:
    """Bytes of all tensors of a launch, each once."""
    unique = {id(tensor): tensor for value in arguments.values() for tensor in _tensors(value)}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())


def _jacobian(a: Mapping[str, Any], block: int, part: int, twice: int) -> tuple[float, float]:
    """Products and loads of all tiles of G, each computed for every block of columns v."""
    samples, v, positions = a["samples"], a["column_count"], a["positions"]
    groups = a["groups"]
    blocks = -(-v // block)
    across, down = -(-a["index_count"] // a["COLUMNS"]), -(-a["row_count"] // part)
    tiles = groups * across * down * samples * blocks * twice
    flops = 2 * tiles * a["ROWS"] * a["COLUMNS"] * _up(positions, a["POSITIONS"])
    entries = v * a["row_count"] * across + blocks * a["index_count"] * down
    return flops, BYTES * twice * groups * samples * positions * entries


def _squared_sum(a: Mapping[str, Any], grid: tuple[int, ...]) -> Work:
    part = min(a["ROWS"], a["MOST_ROWS"])
    flops, loads = _jacobian({**a, "groups": grid[1]}, a["ROWS"] // part, part, 1)
    return Work(flops, _touched(a), loads)


def _squared_dot(a: Mapping[str, Any], grid: tuple[int, ...]) -> Work:
    block = min(a["ROWS"], a["MOST_COLUMNS"])
    return Work(*_with_memory(a, *_jacobian(a, block, a["ROWS"] // block, 1)))


def _gram(a: Mapping[str, Any], grid: tuple[int, ...]) -> Work:
    block = min(a["ROWS"], a["MOST_COLUMNS"])
    blocks = -(-a["column_count"] // block)
    part = a["ROWS"] // block
    # G for both blocks of each pair at or below the diagonal, and the inner products of the pair.
    flops, loads = _jacobian(a, block, part, 1 if blocks == 1 else blocks + 1)
    entries = _up(a["row_count"], part) * _up(a["index_count"], a["COLUMNS"]) * a["groups"]
    flops += 2 * a["samples"] * blocks * (blocks + 1) / 2 * block * block * entries
    return Work(*_with_memory(a, flops, loads))


def _with_memory(a: Mapping[str, Any], flops: float, loads: float) -> tuple[float, float, float]:
    return flops, _touched(a), loads


def _position_products(a: Mapping[str, Any], grid: tuple[int, ...]) -> Work:
    rows = a["row_channels"] * prod(a["LEFT_TAPS"][0]) + a["ONES"]
    columns = a["column_channels"] * prod(a["RIGHT_TAPS"][0]) + a["ONES"]
    down, across = -(-rows // a["ROWS"]), -(-columns // a["COLUMNS"])
    tiles = down * (down + 1) / 2 if a["SYMMETRIC"] else down * across
    count = a["columns_v"] * a["samples"] * prod(a["sizes"])
    flops = 2 * tiles * grid[1] * count * a["ROWS"] * a["COLUMNS"]
    share = (rows / down + columns / across) * tiles
    return Work(flops, _touched(a), BYTES * grid[1] * count * share)


def _squared_conv_input(a: Mapping[str, Any], grid: tuple[int, ...]) -> Work:
    kernel, stride, _, common, _ = a["PHASES"]
    down = -(-a["row_count"] // a["ROWS"])
    across = grid[0] // down
    flops = loads = 0.0
    # The taps of all phases: a tap belongs to one phase of each dimension.
    for taps in _taps_of_phases(kernel, stride, common):
        summands = a["sum_count"] * taps
        flops += 2 * grid[0] * a["ROWS"] * a["COLUMNS"] * _up(summands, a["SUMMANDS"])
        loads += BYTES * summands * (a["COLUMNS"] * grid[0] + a["row_count"] * across)
    return Work(grid[1] * flops, _touched(a) + _touched({"out": a["out"]}), grid[1] * loads)


def _taps_of_phases(kernel: Any, stride: Any, common: Any) -> list[int]:
    found = [1]
    for k, s, g in zip(kernel, stride, common, strict=True):
        assert g == 1, "phases without taps are not counted"
        found = [count * len(range(first, k, s)) for count in found for first in range(s)]
    return found


def _position_sums(a: Mapping[str, Any], grid: tuple[int, ...]) -> Work:
    count = grid[1] * a["index_count"] * a["positions"]
    return Work(count, _touched(a), BYTES * count)


def _add_parts(a: Mapping[str, Any], grid: tuple[int, ...]) -> Work:
    memory = _touched(a) + (_touched({"out": a["out"]}) if a["KEEP"] else 0)
    return Work(a["parts"].numel(), memory, memory)


def _entries(a: Mapping[str, Any], grid: tuple[int, ...]) -> Work:
    return Work(20 * a["entries"], _touched(a), _touched(a))


def _list(a: Mapping[str, Any], grid: tuple[int, ...]) -> Work:
    # The table holds addresses, so tensors are known by their rows of at most 16384 entries.
    entries = grid[0] << 14
    reads = a["WIDTH"] - 1
    writes = int(a["OP"] in ("precision_update", "sample_from_precision"))
    memory = BYTES * entries * (reads + writes) + _touched(a)
    return Work(10 * entries, memory, memory)


COUNTS: dict[str, Callable[[Mapping[str, Any], tuple[int, ...]], Work]] = {
    "squared_sum": _squared_sum,
    "squared_dot": _squared_dot,
    "gram": _gram,
    "position_products": _position_products,
    "position_sums": _position_sums,
    "squared_conv_input": _squared_conv_input,
    "add_parts": _add_parts,
    "squared_derivative": _entries,
    "list": _list,
}


def of_launch(launch: Launch) -> Work:
    """The least work of a launch among its tiles."""
    found = []
    for tile in launch.kernel.tiles(launch.arguments):
        arguments = {**launch.arguments, **tile.constants}
        found.append(COUNTS[launch.name](arguments, launch.grid(arguments)))
    return min(found, key=lambda work: work.seconds)


def least(shape: Shape) -> Work:
    """Every product once, every entry of a tensor read or written once."""
    convs = {conv.label: conv for conv in CONVS}
    if shape.label in convs:
        return _least_conv(shape.name, convs[shape.label])
    (entries,) = (entries for entries in ENTRIES if shape.label == f"{entries} entries")
    tensors = {"squared_derivative": 3, "precision_update": 3, "sample_from_precision": 4}
    memory = BYTES * entries * tensors.get(shape.op, 2)
    return Work(0, memory, 0)


def _least_conv(name: str, conv: Conv) -> Work:
    x, s, w = prod(conv.input), prod(conv.output), prod(conv.weight)
    v, n, patch = conv.columns, conv.samples, conv.inputs * conv.kernel**2
    positions = prod(conv.output[2:])
    dense = 2 * n * positions * w
    flops, entries = {
        "squared_conv_input": (dense, s + w + 3 * x),
        "squared_conv_weight": (dense, s + x + 2 * w),
        "jacobian_squared_sum": (v * dense, v * s + x + 2 * w),
        "jacobian_squared_dot": (v * dense, v * s + x + w + 2 * n * v),
        "jacobian_gram": (v * dense + n * v * (v + 1) * w, v * s + x + w + 2 * n * v * v),
        "kronecker_input": (n * positions * patch * (patch + 1), x + 2 * patch**2),
        "kronecker_input, reduce": (
            n * patch * (patch + 1 + positions),
            x + 2 * patch**2,
        ),
        "kronecker_output": (
            v * n * positions * conv.outputs * (conv.outputs + 1),
            v * s + 2 * conv.outputs**2,
        ),
    }[name]  # fmt: skip
    return Work(flops, BYTES * entries, 0)


def roofline(shape: Shape) -> tuple[Work, list[Work], float]:
    """The least work of an op, the work of its launches, and the share of the bound they reach."""
    needed = least(shape)
    launches = [of_launch(launch) for launch in recorded(shape, torch.float32)]
    return needed, launches, needed.seconds / sum(work.seconds for work in launches)
