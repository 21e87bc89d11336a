r"""C[n, v, v'] = \sum_{a, p} G_{n,v}[a, p] \sigma^2[a, p] G_{n,v'}[a, p].

A program takes one sample, two blocks of columns v, and its share of the tiles of G. A tile of rows
(v, r), reshaped to one row for each v, gives its inner products by one more matrix product. Blocks
above the diagonal are mirrored; up to 32 columns there is one block, and G is computed once.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton.jacobian_layer import JacobianLayer
from lapkernels.kernels.triton.jacobian_squared_dot import fits
from lapkernels.kernels.triton.jacobian_tiles import (
    column_sides,
    jacobian_tile,
    row_sides,
    tile_of_item,
    variance_tile,
)
from lapkernels.kernels.triton.launch import Kernel, Tile, power_of_two, split_count
from lapkernels.kernels.triton.sums import add_parts


@triton.jit
def gram_kernel(
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
    ONE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Grid: samples of all pairs of blocks of columns v, one, shares of all tiles of G."""
    BLOCK: tl.constexpr = ROWS if ROWS < MOST_COLUMNS else MOST_COLUMNS
    PART: tl.constexpr = ROWS // BLOCK
    blocks = tl.cdiv(column_count, BLOCK)
    pair = tl.program_id(0) // samples
    sample = (tl.program_id(0) % samples).to(INDEX)
    first_v = (pair // blocks * BLOCK).to(INDEX)
    second_v = (pair % blocks * BLOCK).to(INDEX)
    if second_v > first_v:
        return
    part = tl.program_id(2).to(INDEX)
    tiles = groups * tl.cdiv(row_count, PART) * tl.cdiv(index_count, COLUMNS)
    share = tl.cdiv(tiles, tl.num_programs(2))
    total = tl.zeros((BLOCK, BLOCK), SUM)
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
        other = g
        if not ONE_BLOCK:
            row, v, row_side, row_inside = row_sides(
                rows, group, second_v, first_row, row_count, column_count,
                ROW_TAPS, INDEX, ROWS, PART,
            )  # fmt: skip
            other = jacobian_tile(
                rows, columns, sample, row_side, row_inside, column_side, column_inside,
                positions, sizes, ROW_TAPS, COLUMN_TAPS,
                FACTOR, SUM, PRECISION, INDEX, ROWS, COLUMNS, POSITIONS,
            )  # fmt: skip
        weight = variance_tile(
            variance, variance_strides, group, row, column, row_count, index_count
        )
        left = tl.reshape(g * weight.to(SUM), (BLOCK, PART * COLUMNS))
        right = tl.reshape(other, (BLOCK, PART * COLUMNS))
        total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION, out_dtype=SUM)
    v = (first_v + tl.arange(0, BLOCK))[:, None]
    w = (second_v + tl.arange(0, BLOCK))[None, :]
    inside = (v < column_count) & (w < column_count)
    parts += (part * samples + sample) * column_count * column_count
    tl.store(parts + v * column_count + w, total, mask=inside)
    if not ONE_BLOCK:
        tl.store(parts + w * column_count + v, total, mask=inside & (first_v > second_v))


def _tile(rows: int, columns: int, positions: int, warps: int, stages: int) -> Tile:
    constants = {"ROWS": rows, "COLUMNS": columns, "POSITIONS": positions}
    return Tile(constants, warps, stages, registers=255)


_TILES = (_tile(64, 32, 16, 8, 2), _tile(32, 32, 16, 8, 2))

GRAM = Kernel(
    gram_kernel,
    key=("MOST_COLUMNS", "row_count", "index_count", "positions", "PRECISION"),
    nvidia=_TILES,
    amd=_TILES,
    interpreter={"ROWS": 64, "COLUMNS": 64, "POSITIONS": 128},
    fits=fits,
)


def jacobian_gram(
    out: Tensor,
    decay: float,
    scale: float,
    small: Tensor,
    large: Tensor,
    variance: Tensor,
    *geometry: Any,
) -> None:
    """out <- decay * out + scale * C; arguments as the registered op's."""
    layer = JacobianLayer.of(small, large, *geometry)
    most = power_of_two(layer.column_count, 16, 32)
    tiles = (
        layer.groups * triton.cdiv(layer.row_count, 64 // most) * triton.cdiv(layer.index_count, 64)
    )
    splits = split_count(layer.samples, tiles, out.numel(), out.device)
    parts = layer.parts(splits, out.numel())
    pairs = triton.cdiv(layer.column_count, most) ** 2

    GRAM.launch(
        lambda constants: (layer.samples * pairs, 1, splits),
        variance=variance.contiguous(),
        variance_strides=layer.weight_strides,
        samples=layer.samples,
        groups=layer.groups,
        MOST_COLUMNS=most,
        ONE_BLOCK=pairs == 1,
        **layer.arguments(parts),
    )
    add_parts(parts, out, decay, scale)
