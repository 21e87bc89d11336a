r"""Products of two factors summed over samples and positions, any of them squared.

    P[r, c] = \sum_{v, n, t} L[r; v, n, t] R[c; v, n, t]

The sum runs over flat (v, n, t), so that a layer with one position sums over samples at full speed;
it is split among programs, and a second pass adds their parts in order. With SYMMETRIC, L is R and
tiles above the diagonal are mirrored from below it. Read phase by phase (`phases.py`), R is the
unfolded input of a transposed convolution: taps of two phases never meet, and their products stay
zero.

Arithmetic intensity in float32: ROWS * COLUMNS / (2 (ROWS + COLUMNS)) FLOP a byte loaded into a
tile, 16 for 64 x 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton.launch import Kernel, Tile, product_types, split_count
from lapkernels.kernels.triton.operands import Operand, Taps, Triple, index_type, sum_dtype
from lapkernels.kernels.triton.phases import Phases, at_least_one, phase_at, phases
from lapkernels.kernels.triton.read import along_indices, along_positions, load
from lapkernels.kernels.triton.sums import add_parts, scalar


@triton.jit
def position_products_kernel(
    left,
    right,
    parts,
    part_strides,
    columns_v,
    samples,
    sizes,
    padding,
    row_channels,
    column_channels,
    LEFT_TAPS: tl.constexpr,
    RIGHT_TAPS: tl.constexpr,
    PHASES: tl.constexpr,
    PHASED: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    ONES: tl.constexpr,
    SQUARE_LEFT: tl.constexpr,
    SQUARE_RIGHT: tl.constexpr,
    FACTOR: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
    INDEX: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMMANDS: tl.constexpr,
):
    """Grid: tiles of P, groups and phases, parts. Counts of channels are those of one group.

    With ONES there is one more index after all others, at which a factor is one everywhere.
    """
    PHASE_COUNT: tl.constexpr = PHASES[1][0] * PHASES[1][1] * PHASES[1][2]
    part = tl.program_id(2).to(INDEX)
    if PHASED:
        group = (tl.program_id(1) // PHASE_COUNT).to(INDEX)
        phase = tl.program_id(1) % PHASE_COUNT
        f, grid, origin, first, counts = phase_at(phase, sizes, padding, PHASES)
        left_counts, left_origin, right_counts, right_origin = counts, origin, counts, origin
    else:
        group = tl.program_id(1).to(INDEX)
        first, grid, left_origin, right_origin = (0, 0, 0), sizes, left.origin, right.origin
        left_counts, right_counts = LEFT_TAPS[0], RIGHT_TAPS[0]
    positions = grid[0] * grid[1] * grid[2]
    rows = row_channels * left_counts[0] * left_counts[1] * left_counts[2]
    columns = column_channels * right_counts[0] * right_counts[1] * right_counts[2]
    if PHASED:
        grid = at_least_one(grid)
        left_counts, right_counts = at_least_one(left_counts), at_least_one(right_counts)
    across = tl.cdiv(columns + ONES, COLUMNS)
    tile = tl.program_id(0).to(INDEX)
    first_row = tile // across * ROWS
    first_column = tile % across * COLUMNS
    if SYMMETRIC:
        if first_column >= first_row + ROWS:
            return
    row = (first_row + tl.arange(0, ROWS).to(INDEX))[:, None]
    column = (first_column + tl.arange(0, COLUMNS).to(INDEX))[None, :]
    left_side = along_indices(row, group * row_channels, left_counts, left.strides, LEFT_TAPS[2])
    right_side = along_indices(
        column, group * column_channels, right_counts, right.strides, RIGHT_TAPS[2]
    )
    count = scalar(columns_v, INDEX) * samples * positions
    share = tl.cdiv(tl.cdiv(count, tl.num_programs(2)), SUMMANDS) * SUMMANDS
    end = tl.minimum((part + 1) * share, count)
    total = tl.zeros((ROWS, COLUMNS), SUM)
    for start in range(part * share, end, SUMMANDS):
        flat = start + tl.arange(0, SUMMANDS).to(INDEX)
        inside = flat < end
        t = flat % positions
        item = flat // positions
        v = item // samples
        n = item % samples
        place = along_positions(t, grid, left_origin, left.strides, LEFT_TAPS[1])
        offset = place[0] + v * left.strides[0] + n * left.strides[1]
        here = (offset[None, :], place[1][None, :], place[2][None, :], place[3][None, :])
        a = load(
            left.data, left.limits, here, left_side, (row < rows) & inside[None, :], LEFT_TAPS[3]
        ).to(FACTOR)
        place = along_positions(t, grid, right_origin, right.strides, RIGHT_TAPS[1])
        offset = place[0] + v * right.strides[0] + n * right.strides[1]
        here = (offset[:, None], place[1][:, None], place[2][:, None], place[3][:, None])
        b = load(
            right.data,
            right.limits,
            here,
            right_side,
            (column < columns) & inside[:, None],
            RIGHT_TAPS[3],
        ).to(FACTOR)
        if ONES:
            a = tl.where((row == rows) & inside[None, :], 1.0, a).to(FACTOR)
            b = tl.where((column == columns) & inside[:, None], 1.0, b).to(FACTOR)
        if SQUARE_LEFT:
            a = a * a
        if SQUARE_RIGHT:
            b = b * b
        total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=SUM)
    there = (row < rows + ONES) & (column < columns + ONES)
    if PHASED:
        # Every phase would add the product of the ones with themselves.
        there = there & ((row < rows) | (column < columns))
        row = _index_of_tap(row, rows, first, left_counts, row_channels, PHASES)
        column = _index_of_tap(column, columns, first, right_counts, column_channels, PHASES)
    parts += part * part_strides[0] + group * part_strides[1]
    tl.store(parts + row * part_strides[2] + column * part_strides[3], total, mask=there)
    if SYMMETRIC:
        if first_column + COLUMNS <= first_row:
            mirrored = column * part_strides[2] + row * part_strides[3]
            tl.store(parts + mirrored, total, mask=there)


@triton.jit
def _index_of_tap(index, count, first, counts, channels, PHASES: tl.constexpr):
    """Index among (channel, tap) of a (channel, tap of a phase); `count` is the index of ones."""
    kernel: tl.constexpr = PHASES[0]
    taps = counts[0] * counts[1] * counts[2]
    tap = index % taps
    rest = tap // counts[2]
    k0 = first[0] + rest // counts[1] * (PHASES[1][0] // PHASES[3][0])
    k1 = first[1] + rest % counts[1] * (PHASES[1][1] // PHASES[3][1])
    k2 = first[2] + tap % counts[2] * (PHASES[1][2] // PHASES[3][2])
    flat = ((index // taps * kernel[0] + k0) * kernel[1] + k1) * kernel[2] + k2
    return tl.where(index == count, channels * (kernel[0] * kernel[1] * kernel[2]), flat)


def _fits(arguments: Mapping[str, Any], constants: Mapping[str, int]) -> bool:
    columns = arguments["column_channels"]
    for taps in arguments["RIGHT_TAPS"][0]:
        columns *= taps
    return constants["COLUMNS"] <= max(16, triton.next_power_of_2(columns))


def _tile(rows: int, columns: int, summands: int, warps: int, stages: int) -> Tile:
    return Tile({"ROWS": rows, "COLUMNS": columns, "SUMMANDS": summands}, warps, stages)


# Square tiles, as a symmetric result is computed up to its diagonal.
_TILES = (_tile(64, 64, 16, 8, 2), _tile(32, 32, 16, 8, 2), _tile(16, 16, 16, 4, 2))

POSITION_PRODUCTS = Kernel(
    position_products_kernel,
    key=(
        "row_channels",
        "column_channels",
        "sizes",
        "LEFT_TAPS",
        "RIGHT_TAPS",
        "PHASES",
        "PRECISION",
    ),
    nvidia=_TILES,
    amd=_TILES,
    interpreter={"ROWS": 32, "COLUMNS": 32, "SUMMANDS": 256},
    fits=_fits,
)


def position_products(
    out: Tensor,
    decay: float,
    scale: float,
    left: tuple[Operand, Taps],
    right: tuple[Operand, Taps],
    channels: tuple[int, int],
    sizes: Triple,
    groups: int,
    *,
    symmetric: bool = False,
    ones: bool = False,
    square: tuple[bool, bool] = (False, False),
    transposed: tuple[Phases, Triple] | None = None,
) -> None:
    """out <- decay * out + scale * P, `out` holding [groups, rows, columns] in this order.

    `channels` are those of one group of either factor, `sizes` the grid of positions t. With
    `transposed`, (phases, padding), positions are those of the large grid, and factors are read on
    the small one.
    """
    phased, padding = transposed or (phases((1,), (1,), (1,)), (0, 0, 0))
    number = phased.number
    # Largest over the phases, as sizes and taps of a phase are.
    left_taps, right_taps = (
        phased.taps if transposed else taps.number[0] * taps.number[1] * taps.number[2]
        for _, taps in (left, right)
    )
    rows, columns = channels[0] * left_taps + ones, channels[1] * right_taps + ones
    entries = out.numel()
    data = right[0].data
    grid = phased.positions(sizes) if transposed else sizes
    count = data.shape[0] * data.shape[1] * grid[0] * grid[1] * grid[2]
    tiles = triton.cdiv(rows, 64) * triton.cdiv(columns, 64) * groups * number
    splits = split_count(tiles, triton.cdiv(count, 64), entries, data.device)
    width = out.shape[-1] if symmetric else columns
    make = torch.zeros if transposed else torch.empty
    parts = make(splits, entries, dtype=sum_dtype(data.dtype), device=data.device)
    if transposed and ones:
        corner = parts.view(splits, groups, width, width)[0, :, -1, -1]
        corner.fill_(data.shape[1] * sizes[0] * sizes[1] * sizes[2])

    def programs(constants: Mapping[str, Any]) -> tuple[int, int, int]:
        down = triton.cdiv(rows, constants["ROWS"])
        return down * triton.cdiv(columns, constants["COLUMNS"]), groups * number, splits

    POSITION_PRODUCTS.launch(
        programs,
        left=left[0],
        right=right[0],
        parts=parts,
        part_strides=(entries, entries // groups, width, 1),
        columns_v=data.shape[0],
        samples=data.shape[1],
        sizes=sizes,
        padding=padding,
        row_channels=channels[0],
        column_channels=channels[1],
        LEFT_TAPS=tuple(left[1]),
        RIGHT_TAPS=tuple(right[1]),
        PHASES=tuple(phased),
        PHASED=transposed is not None,
        SYMMETRIC=symmetric,
        ONES=ones,
        SQUARE_LEFT=square[0],
        SQUARE_RIGHT=square[1],
        INDEX=index_type(left[0].data, data, parts, count=count),
        **product_types(data, squared=any(square)),
    )
    add_parts(parts, out, decay, scale)
