"""Bytes and flops that the CUDA kernels spend, counted from the code, against the least possible.

The model is an A100 (sm_80): 19.5 Tflop/s in float32 without tensor cores, 1555 GB/s. Work done on
the empty part of a tile counts as spent; memory counts once for each tensor (a layer's tensors fit
in 40 MB of cache), and twice for the partial sums of a split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

FLOPS, BYTES = 19.5e12, 1.555e12
TILE, NARROW, DEPTH, BLOCKS = 64, 16, 16, 512


@dataclass(frozen=True)
class Shape:
    """A layer I -> O with ``kernel`` taps on T positions, N samples, V columns."""

    name: str
    inputs: int
    outputs: int
    taps: int
    positions: int
    samples: int
    columns: int

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.taps

    @property
    def x(self) -> int:
        return self.samples * self.inputs * self.positions

    @property
    def m(self) -> int:
        return self.samples * self.outputs * self.positions

    @property
    def s(self) -> int:
        return self.columns * self.m


SHAPES = [
    Shape("conv 64→96, 3×3, 16×16, N 16, V 10", 64, 96, 9, 256, 16, 10),
    Shape("conv 16→3, 3×3, 128×128, N 4, V 3", 16, 3, 9, 128 * 128, 4, 3),
    Shape("Linear 384→384 on 196 positions, N 8, V 10", 384, 384, 1, 196, 8, 10),
]


@dataclass(frozen=True)
class Cost:
    """Flops and numbers of four bytes: needed by the formula, and spent by the kernel."""

    flops: float
    spent_flops: float
    numbers: float
    spent_numbers: float

    @property
    def intensity(self) -> float:
        """Flops a byte that the formula needs."""
        return self.flops / (4 * self.numbers)

    @property
    def bound(self) -> str:
        return "flops" if self.flops / FLOPS > 4 * self.numbers / BYTES else "memory"

    @property
    def share(self) -> float:
        """The roofline's time over the model's."""
        least = max(self.flops / FLOPS, 4 * self.numbers / BYTES)
        return least / max(self.spent_flops / FLOPS, 4 * self.spent_numbers / BYTES)


def _splits(tiles: int, work: int) -> int:
    return max(1, min(work, ceil(BLOCKS / tiles)))


def _product(steps: float, rows: int = TILE) -> float:
    return steps * 2 * rows * TILE * DEPTH


def _rows(columns: int, lanes: int, in_narrow: int, in_square: int) -> tuple[int, int]:
    """Rows of the tile that is taken, and columns stacked in it (tile_choice.h)."""

    def covered(side: int, stack: int) -> int:
        return ceil(columns / stack) * ceil(lanes / (side // stack)) * side

    if 3 * covered(NARROW, in_narrow) < 2 * covered(TILE, in_square):
        return NARROW, in_narrow
    return TILE, in_square


def _stack(columns: int, lanes: int, side: int, divisor: bool = False) -> int:
    stack = min(columns, max(1, side // lanes))
    while divisor and columns % stack:
        stack -= 1
    return stack


def jacobian_squared_sum(shape: Shape) -> Cost:
    cols, taps = shape.inputs * shape.taps, shape.parameters
    stacks = (_stack(shape.columns, shape.outputs, side, True) for side in (NARROW, TILE))
    rows, stack = _rows(shape.columns, shape.outputs, *stacks)
    runs = shape.samples * shape.columns // stack
    tiles = ceil(shape.outputs / (rows // stack)) * ceil(cols / TILE)
    pairs = shape.samples * shape.columns
    # Too few runs for all blocks: parts of each are written, one for each column.
    run_splits = _splits(tiles * runs, ceil(shape.positions / (16 * DEPTH)))
    parts = _splits(tiles, runs) if run_splits == 1 else pairs * run_splits
    steps = runs * run_splits * ceil(shape.positions / run_splits / DEPTH)
    least = shape.s + shape.x + taps
    return Cost(
        2 * taps * pairs * (shape.positions + 1),
        tiles * (_product(steps, rows) + runs * 2 * rows * TILE),
        least,
        least + 2 * taps * parts,
    )


def squared_conv_weight(shape: Shape) -> Cost:
    cols, taps = shape.inputs * shape.taps, shape.parameters
    rows, _ = _rows(1, shape.outputs, 1, 1)
    tiles = ceil(shape.outputs / rows) * ceil(cols / TILE)
    length = shape.samples * shape.positions
    splits = _splits(tiles, ceil(length / (16 * DEPTH)))
    steps = splits * ceil(length / splits / DEPTH)
    least = shape.m + shape.x + taps
    return Cost(2 * taps * length, tiles * _product(steps, rows), least, least + 2 * taps * splits)


def _moment(side: int, length: int, numbers: int) -> Cost:
    rows, _ = _rows(1, side, 1, 1)
    down, across = ceil(side / rows), ceil(side / TILE)
    tiles = sum(row * rows < (col + 1) * TILE for row in range(down) for col in range(across))
    splits = _splits(ceil(down * across / 2), ceil(length / (16 * DEPTH)))
    steps = splits * ceil(length / splits / DEPTH)
    # The factor is symmetric: half of it is the least there is to do.
    return Cost(
        side * (side + 1) * length,
        tiles * _product(steps, rows),
        numbers + side**2,
        numbers + side**2 + (1 + splits) * side**2,
    )


def kronecker_input(shape: Shape) -> Cost:
    return _moment(shape.inputs * shape.taps, shape.samples * shape.positions, shape.x)


def kronecker_output(shape: Shape) -> Cost:
    return _moment(shape.outputs, shape.columns * shape.samples * shape.positions, shape.s)


def _through_tiles(shape: Shape, rows: int, stack: int, after: int, result: int) -> Cost:
    cols, taps = shape.inputs * shape.taps, shape.parameters
    stacks = ceil(shape.columns / stack)
    tiles = ceil(shape.outputs / (rows // stack)) * ceil(cols / TILE)
    lists = shape.samples * stacks
    steps = ceil(shape.positions / DEPTH)
    least = shape.s + shape.x + taps + result
    pairs = shape.samples * shape.columns
    return Cost(
        2 * taps * pairs * shape.positions + after * taps * pairs,
        lists * tiles * (_product(steps, rows) + after * rows * TILE),
        least,
        least + 2 * result * _splits(lists, tiles),
    )


def jacobian_squared_dot(shape: Shape) -> Cost:
    stacks = (_stack(shape.columns, shape.outputs, side) for side in (NARROW, TILE))
    rows, stack = _rows(shape.columns, shape.outputs, *stacks)
    return _through_tiles(shape, rows, stack, 3, shape.samples * shape.columns)


def jacobian_gram(shape: Shape) -> Cost:
    """For up to 16 columns, which share a tile."""
    stack = min(shape.columns, 16)
    rows, _ = _rows(stack, shape.outputs, stack, stack)
    return _through_tiles(shape, rows, stack, 2 * shape.columns, shape.samples * shape.columns**2)


def squared_conv_input(shape: Shape) -> Cost:
    rows, _ = _rows(1, shape.inputs, 1, 1)
    positions = shape.samples * shape.positions
    steps = ceil(shape.outputs * shape.taps / DEPTH)
    tiles = ceil(shape.inputs / rows) * ceil(positions / TILE)
    numbers = shape.m + 2 * shape.x + shape.parameters  # the activation's argument is read too
    flops = 2 * shape.parameters * positions
    return Cost(flops, tiles * _product(steps, rows), numbers, numbers)


def window_squared_sum(shape: Shape) -> Cost:
    """Windows of 5 × 5 at the output, 7 × 7 at the input, a lane for each sample and position."""
    lanes, small, large = shape.samples * shape.positions, 25, 49
    pairs, side = lanes * shape.columns, 4
    tiles = ceil(shape.outputs / side) * ceil(shape.inputs * shape.taps / side)
    padded = tiles * side * side * ceil(lanes / 128) * 128 * shape.columns
    numbers = pairs * shape.outputs * small + lanes * shape.inputs * large + shape.parameters
    splits = _splits(tiles, shape.columns * ceil(lanes / 128))
    return Cost(
        2 * shape.parameters * pairs * (small + 1),
        2 * padded * (small + 1),
        numbers,
        numbers + 2 * shape.parameters * splits,
    )


def window_pull(shape: Shape) -> Cost:
    """The same windows, pulled back."""
    rows, _ = _rows(1, shape.inputs, 1, 1)
    lanes, small, large = shape.samples * shape.positions, 25, 49
    width = lanes * shape.columns * large
    tiles = ceil(shape.inputs / rows) * ceil(width / TILE)
    numbers = lanes * shape.columns * shape.outputs * small + width * shape.inputs
    numbers += lanes * shape.inputs * large + shape.parameters
    steps = ceil(shape.outputs * shape.taps / DEPTH)
    # A tap meets the window of 5 x 5 from 25 of its 49 places.
    flops = 2 * shape.parameters * lanes * shape.columns * small
    return Cost(flops, tiles * _product(steps, rows), numbers, numbers)


def _pass(read: int, flops: int) -> Callable[[Shape], Cost]:
    """One pass over memory: ``read`` numbers in and one out for every entry."""

    def cost(shape: Shape) -> Cost:
        numbers = shape.x * (read + 1)
        return Cost(shape.x * flops, shape.x * flops, numbers, numbers)

    return cost


COSTS: dict[str, Callable[[Shape], Cost]] = {
    "jacobian_squared_sum": jacobian_squared_sum,
    "jacobian_squared_dot": jacobian_squared_dot,
    "jacobian_gram": jacobian_gram,
    "squared_conv_weight": squared_conv_weight,
    "squared_conv_input": squared_conv_input,
    "kronecker_input": kronecker_input,
    "kronecker_output": kronecker_output,
    "window_squared_sum": window_squared_sum,
    "window_pull": window_pull,
    "squared_derivative": _pass(2, 8),
    "parameter lists": _pass(2, 6),
}
