r"""var[n, v] = \sum_{a, p} \sigma^2[a, p] G_{n,v}[a, p]^2.

A program takes one sample, a block of columns v, and its share of the tiles of G. Squares times
variances are summed elementwise, in registers, and over the tile once, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton.jacobian_layer import JacobianLayer
from lapkernels.kernels.triton.jacobian_tiles import (
    column_sides,
    jacobian_tile,
    row_sides,
    tile_of_item,
    variance_tile,
)
from lapkernels.kernels.triton.launch import Kernel, Tile, split_count
from lapkernels.kernels.triton.sums import add_parts


@triton.jit
def squared_dot_kernel(
    rows,
    columns,
    variance,
    variance_strides,
    parts,
    samples,
    column_count,
    positions,
    sizes,
    row_count,
    index_count,
    groups,
    ROW_TAPS: tl.constexpr,
    COLUMN_TAPS: tl.constexpr,
    FACTOR: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
    INDEX: tl.constexpr,
    MOST_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Grid: blocks of columns v of all samples, one, shares of all tiles of G."""
    BLOCK: tl.constexpr = ROWS if ROWS < MOST_COLUMNS else MOST_COLUMNS
    PART: tl.constexpr = ROWS // BLOCK
    blocks = tl.cdiv(column_count, BLOCK)
    sample = (tl.program_id(0) // blocks).to(INDEX)
    first_v = (tl.program_id(0) % blocks * BLOCK).to(INDEX)
    part = tl.program_id(2).to(INDEX)
    tiles = groups * tl.cdiv(row_count, PART) * tl.cdiv(index_count, COLUMNS)
    share = tl.cdiv(tiles, tl.num_programs(2))
    total = tl.zeros((ROWS, COLUMNS), SUM)
    for item in range(part * share, tl.minimum((part + 1) * share, tiles)):
        group, first_row, first_column = tile_of_item(item, row_count, index_count, PART, COLUMNS)
        row, v, row_side, row_inside = row_sides(
            rows, group, first_v, first_row, row_count, column_count, ROW_TAPS, INDEX, ROWS, PART
        )
        column, column_side, column_inside = column_sides(
            columns, group, first_column, index_count, COLUMN_TAPS, INDEX, COLUMNS
        )
        g = jacobian_tile(
            rows, columns, sample, row_side, row_inside, column_side, column_inside,
            positions, sizes, ROW_TAPS, COLUMN_TAPS,
            FACTOR, SUM, PRECISION, INDEX, ROWS, COLUMNS, POSITIONS,
        )  # fmt: skip
        weight = variance_tile(
            variance, variance_strides, group, row, column, row_count, index_count
        )
        total += g * g * weight.to(SUM)
    total = tl.sum(tl.reshape(total, (BLOCK, PART * COLUMNS)), 1)
    v = first_v + tl.arange(0, BLOCK)
    offset = (part * samples + sample) * column_count + v
    tl.store(parts + offset, total, mask=v < column_count)


def fits(arguments: Mapping[str, Any], constants: Mapping[str, int]) -> bool:
    """Whether a tile is no larger than G of one sample."""
    rows = arguments["MOST_COLUMNS"] * triton.next_power_of_2(arguments["row_count"])
    columns = triton.next_power_of_2(arguments["index_count"])
    return constants["ROWS"] <= rows and constants["COLUMNS"] <= columns


def _tile(rows: int, columns: int, positions: int, warps: int, stages: int) -> Tile:
    return Tile({"ROWS": rows, "COLUMNS": columns, "POSITIONS": positions}, warps, stages)


_TILES = (_tile(32, 64, 16, 8, 2), _tile(32, 32, 16, 8, 2))

SQUARED_DOT = Kernel(
    squared_dot_kernel,
    key=("MOST_COLUMNS", "row_count", "index_count", "positions", "PRECISION"),
    nvidia=_TILES,
    amd=_TILES,
    interpreter={"ROWS": 64, "COLUMNS": 64, "POSITIONS": 128},
    fits=fits,
)


def _columns_at_once(count: int) -> int:
    """The largest power of two up to 64 that pads ``count`` by at most a twentieth."""
    sizes = [64 >> step for step in range(7)]
    return next(size for size in sizes if triton.cdiv(count, size) * size <= 1.05 * count)


def jacobian_squared_dot(
    out: Tensor,
    decay: float,
    scale: float,
    small: Tensor,
    large: Tensor,
    variance: Tensor,
    *geometry: Any,
) -> None:
    """out <- decay * out + scale * var; arguments as the registered op's."""
    layer = JacobianLayer.of(small, large, *geometry)
    most = _columns_at_once(layer.column_count)
    tiles = (
        layer.groups * triton.cdiv(layer.row_count, 64 // most) * triton.cdiv(layer.index_count, 64)
    )
    splits = split_count(
        layer.samples * triton.cdiv(layer.column_count, most), tiles, out.numel(), out.device
    )
    parts = layer.parts(splits, out.numel())

    def grid(constants: Mapping[str, Any]) -> tuple[int, int, int]:
        block = min(constants["ROWS"], most)
        return layer.samples * triton.cdiv(layer.column_count, block), 1, splits

    SQUARED_DOT.launch(
        grid,
        variance=variance.contiguous(),
        variance_strides=layer.weight_strides,
        samples=layer.samples,
        groups=layer.groups,
        MOST_COLUMNS=most,
        **layer.arguments(parts),
    )
    add_parts(parts, out, decay, scale)
