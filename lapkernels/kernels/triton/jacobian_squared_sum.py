r"""D[a, p] = \sum_{n, v} G_{n,v}[a, p]^2, p = (b, tap).

A program keeps a tile of D and goes over its share of samples and blocks of columns; shares are
added by a second pass. Squares are summed where G's entries are, and over the columns in a tile
once, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton.jacobian_layer import JacobianLayer
from lapkernels.kernels.triton.jacobian_tiles import column_sides, jacobian_tile, row_sides
from lapkernels.kernels.triton.launch import Kernel, Tile, power_of_two, split_count
from lapkernels.kernels.triton.sums import add_parts


@triton.jit
def squared_sum_kernel(
    rows,
    columns,
    parts,
    part_strides,
    samples,
    column_count,
    positions,
    sizes,
    row_count,
    index_count,
    ROW_TAPS: tl.constexpr,
    COLUMN_TAPS: tl.constexpr,
    FACTOR: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
    INDEX: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Grid: tiles of D, groups, shares of all (sample, block of columns v)."""
    PART: tl.constexpr = ROWS if ROWS < MOST_ROWS else MOST_ROWS
    BLOCK: tl.constexpr = ROWS // PART
    across = tl.cdiv(index_count, COLUMNS)
    tile = tl.program_id(0).to(INDEX)
    group = tl.program_id(1).to(INDEX)
    part = tl.program_id(2).to(INDEX)
    column, column_side, column_inside = column_sides(
        columns, group, tile % across * COLUMNS, index_count, COLUMN_TAPS, INDEX, COLUMNS
    )
    blocks = tl.cdiv(column_count, BLOCK)
    share = tl.cdiv(samples * blocks, tl.num_programs(2))
    total = tl.zeros((ROWS, COLUMNS), SUM)
    for item in range(part * share, tl.minimum((part + 1) * share, samples * blocks)):
        row, v, row_side, row_inside = row_sides(
            rows, group, item % blocks * BLOCK, tile // across * PART, row_count, column_count,
            ROW_TAPS, INDEX, ROWS, PART,
        )  # fmt: skip
        g = jacobian_tile(
            rows, columns, item // blocks, row_side, row_inside, column_side, column_inside,
            positions, sizes, ROW_TAPS, COLUMN_TAPS,
            FACTOR, SUM, PRECISION, INDEX, ROWS, COLUMNS, POSITIONS,
        )  # fmt: skip
        total += g * g
    total = tl.sum(tl.reshape(total, (BLOCK, PART, COLUMNS)), 0)
    row = (tile // across * PART + tl.arange(0, PART))[:, None]
    offset = part * part_strides[0] + group * part_strides[1]
    offset += row * part_strides[2] + column * part_strides[3]
    tl.store(parts + offset, total, mask=(row < row_count) & (column < index_count))


def _fits(arguments: Mapping[str, Any], tile: Mapping[str, int]) -> bool:
    rows = arguments["MOST_ROWS"] * triton.next_power_of_2(arguments["column_count"])
    columns = triton.next_power_of_2(arguments["index_count"])
    return tile["ROWS"] <= rows and tile["COLUMNS"] <= columns


def _tile(rows: int, columns: int, positions: int, registers: int | None = None) -> Tile:
    constants = {"ROWS": rows, "COLUMNS": columns, "POSITIONS": positions}
    return Tile(constants, warps=8, stages=2, registers=registers)


_TILES = (_tile(64, 64, 16), _tile(32, 32, 16, registers=255))

SQUARED_SUM = Kernel(
    squared_sum_kernel,
    key=("MOST_ROWS", "row_count", "index_count", "column_count", "positions", "PRECISION"),
    nvidia=_TILES,
    amd=_TILES,
    interpreter={"ROWS": 64, "COLUMNS": 64, "POSITIONS": 128},
    fits=_fits,
)


def jacobian_squared_sum(
    out: Tensor,
    decay: float,
    scale: float,
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    *rest: Any,
) -> None:
    """out <- decay * out + scale * D; arguments as the registered op's."""
    layer = JacobianLayer.of(small, large, kernel_size, *rest)
    tiles = triton.cdiv(layer.row_count, 64) * triton.cdiv(layer.index_count, 64) * layer.groups
    most = power_of_two(layer.row_count, 1, 128)
    items = layer.samples * triton.cdiv(layer.column_count, max(1, 64 // most))
    splits = split_count(tiles, items, out.numel(), out.device)
    parts = layer.parts(splits, out.numel())

    def grid(constants: Mapping[str, Any]) -> tuple[int, int, int]:
        part = min(constants["ROWS"], most)
        down = triton.cdiv(layer.row_count, part)
        return down * triton.cdiv(layer.index_count, constants["COLUMNS"]), layer.groups, splits

    SQUARED_SUM.launch(
        grid,
        part_strides=(out.numel(), *layer.weight_strides),
        samples=layer.samples,
        MOST_ROWS=most,
        **layer.arguments(parts),
    )
    add_parts(parts, out, decay, scale)
