"""A tile of per-sample Jacobian columns, which lives in registers and is never stored.

    G[(v, r), c] = sum_t R_v[r, t] C[c, t]

R is the factor that depends on the column v (the back-propagated one), C the other. The one on the
large grid is read through the kernel's taps, with index (channel, tap). Rows of a tile are PART
indices r of each of ROWS / PART columns v: a layer with few channels fills a tile with columns,
which share one read of C.

Arithmetic intensity of a tile, in float32: ROWS * COLUMNS / (2 (ROWS + COLUMNS)) FLOP a byte
loaded, 16 for 64 x 64, of which most is served by the caches; ROWS * COLUMNS sums are in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lapkernels.kernels.triton.read import along_indices, along_positions, load


@triton.jit
def jacobian_tile(
    rows,
    columns,
    sample,
    row_side,
    row_inside,
    column_side,
    column_inside,
    positions,
    sizes,
    ROW_TAPS: tl.constexpr,
    COLUMN_TAPS: tl.constexpr,
    FACTOR: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
    INDEX: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """G of one sample; a side is what `along_indices` returns, the rows' being [ROWS, 1]."""
    row_data = rows.data + sample * rows.strides[1]
    column_data = columns.data + sample * columns.strides[1]
    tile = tl.zeros((ROWS, COLUMNS), SUM)
    for first in range(0, positions, POSITIONS):
        flat = (first + tl.arange(0, POSITIONS)).to(INDEX)
        across = along_positions(flat[None, :], sizes, rows.origin, rows.strides, ROW_TAPS[1])
        down = along_positions(
            flat[:, None], sizes, columns.origin, columns.strides, COLUMN_TAPS[1]
        )
        inside = flat < positions
        left = load(
            row_data, rows.limits, across, row_side, row_inside & inside[None, :], ROW_TAPS[3]
        )
        right = load(
            column_data,
            columns.limits,
            down,
            column_side,
            column_inside & inside[:, None],
            COLUMN_TAPS[3],
        )
        tile = tl.dot(
            left.to(FACTOR), right.to(FACTOR), tile, input_precision=PRECISION, out_dtype=SUM
        )
    return tile


@triton.jit
def row_sides(
    rows, group, first_column, first, count, column_count,
    TAPS: tl.constexpr, INDEX: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Indices r [ROWS, 1], their side, and which of them exist, for PART of them a column v."""
    row = tl.arange(0, ROWS).to(INDEX)[:, None]
    index = first + row % PART
    v = first_column + row // PART
    taps: tl.constexpr = TAPS[0][0] * TAPS[0][1] * TAPS[0][2]
    offset, place0, place1, place2 = along_indices(
        index, group * (count // taps), TAPS[0], rows.strides, TAPS[2]
    )
    side = (offset + v * rows.strides[0], place0, place1, place2)
    return index, v, side, (index < count) & (v < column_count)


@triton.jit
def column_sides(
    columns, group, first, count, TAPS: tl.constexpr, INDEX: tl.constexpr, COLUMNS: tl.constexpr
):
    """Indices c [1, COLUMNS], their side, and which of them exist."""
    index = first + tl.arange(0, COLUMNS).to(INDEX)[None, :]
    taps: tl.constexpr = TAPS[0][0] * TAPS[0][1] * TAPS[0][2]
    side = along_indices(index, group * (count // taps), TAPS[0], columns.strides, TAPS[2])
    return index, side, index < count


@triton.jit
def tile_of_item(item, row_count, index_count, PART: tl.constexpr, COLUMNS: tl.constexpr):
    """Group, first row and first column of a flat tile of G."""
    across = tl.cdiv(index_count, COLUMNS)
    down = tl.cdiv(row_count, PART)
    rest = item // across
    return rest // down, rest % down * PART, item % across * COLUMNS


@triton.jit
def variance_tile(variance, strides, group, row, column, row_count, index_count):
    """Variances of a tile's entries; `strides` are those of group, row and column."""
    offset = group * strides[0] + row * strides[1] + column * strides[2]
    inside = (row < row_count) & (column < index_count)
    return tl.load(variance + offset, mask=inside, other=0.0)
