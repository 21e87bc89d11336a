r"""m_in[n, i, u] = \varphi'(z)^2 \sum_{o, k} m[n, o, t(u, k)] W[o, i, k]^2.

A product of matrices: channels i times positions (n, u), summed over (o, k). A convolution's m is
on the small grid, so its input positions are taken phase by phase; a transposed convolution reads
m on the large grid through its taps. W is squared as it is read, and the activation's slope applied
to the tile before it is stored. Nothing is split: positions are many.

Arithmetic intensity in float32: ROWS * COLUMNS / (2 (ROWS + COLUMNS)) FLOP a byte loaded into the
tile; against memory, where W stays in cache, O K / 4 FLOP a byte of m and m_in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton.activation import squared_slope
from lapkernels.kernels.triton.launch import Kernel, Tile, product_types
from lapkernels.kernels.triton.operands import ONE_TAP, index_type, point, triple, window
from lapkernels.kernels.triton.phases import at_least_one, phase_at, phases
from lapkernels.kernels.triton.read import along_indices, along_positions, load
from lapkernels.kernels.triton.sums import accumulate, fp64, scalar


@triton.jit
def squared_conv_input_kernel(
    m,
    weight,
    weight_strides,
    z,
    z_strides,
    out,
    out_strides,
    decay: fp64,
    scale: fp64,
    slope: fp64,
    samples,
    sizes,
    padding,
    row_count,
    sum_count,
    TAPS: tl.constexpr,
    PHASES: tl.constexpr,
    PHASED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    KEEP: tl.constexpr,
    FACTOR: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
    INDEX: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMMANDS: tl.constexpr,
):
    """Grid: tiles of (channels i, positions), groups, phases. `sum_count` counts channels o."""
    group = tl.program_id(1).to(INDEX)
    if PHASED:
        f, grid, origin, first, counts = phase_at(tl.program_id(2), sizes, padding, PHASES)
    else:
        f, grid, origin, first, counts = (0, 0, 0), sizes, m.origin, (0, 0, 0), TAPS[0]
    positions = grid[0] * grid[1] * grid[2]
    taps = counts[0] * counts[1] * counts[2]
    if PHASED:
        grid, counts = at_least_one(grid), at_least_one(counts)
    down, tile = tl.cdiv(row_count, ROWS), tl.program_id(0).to(INDEX)
    row = (tile % down * ROWS + tl.arange(0, ROWS).to(INDEX))[:, None]
    column = (tile // down * COLUMNS + tl.arange(0, COLUMNS).to(INDEX))[None, :]
    column_inside = column < scalar(samples, INDEX) * positions
    sample = column // tl.maximum(positions, 1)
    flat = column % tl.maximum(positions, 1)
    places = along_positions(flat, grid, origin, m.strides, TAPS[1])
    across = (places[0] + sample * m.strides[1], places[1], places[2], places[3])
    total = tl.zeros((ROWS, COLUMNS), SUM)
    for start in range(0, sum_count * taps, SUMMANDS):
        index = start + tl.arange(0, SUMMANDS).to(INDEX)
        there = index < sum_count * taps
        side = along_indices(index[:, None], group * sum_count, counts, m.strides, TAPS[2])
        right = load(m.data, m.limits, across, side, there[:, None] & column_inside, TAPS[3])
        tap = index % tl.maximum(taps, 1)
        rest = tap // counts[2]
        k0 = first[0] + rest // counts[1] * (PHASES[1][0] // PHASES[3][0])
        k1 = first[1] + rest % counts[1] * (PHASES[1][1] // PHASES[3][1])
        k2 = first[2] + tap % counts[2] * (PHASES[1][2] // PHASES[3][2])
        offset = index // tl.maximum(taps, 1) * weight_strides[1]
        offset += k0 * weight_strides[3] + k1 * weight_strides[4] + k2 * weight_strides[5]
        offset = group * weight_strides[0] + row * weight_strides[2] + offset[None, :]
        mask = (row < row_count) & there[None, :]
        left = tl.load(weight + offset, mask=mask, other=0.0).to(FACTOR)
        total = tl.dot(
            left * left, right.to(FACTOR), total, input_precision=PRECISION, out_dtype=SUM
        )
    rest = flat // grid[2]
    u0 = f[0] + rest // grid[1] * PHASES[1][0]
    u1 = f[1] + rest % grid[1] * PHASES[1][1]
    u2 = f[2] + flat % grid[2] * PHASES[1][2]
    channel = group * row_count + row
    inside = (row < row_count) & column_inside
    if ACTIVATION != "identity":
        offset = sample * z_strides[1] + u0 * z_strides[3] + u1 * z_strides[4] + u2 * z_strides[5]
        offset = offset + channel * z_strides[2]
        slopes = tl.load(z + offset, mask=inside, other=0.0).to(SUM)
        total *= squared_slope(slopes, scalar(slope, SUM), ACTIVATION)
    offset = sample * out_strides[1] + u0 * out_strides[3] + u1 * out_strides[4]
    offset = offset + u2 * out_strides[5] + channel * out_strides[2]
    accumulate(out + offset, total, decay, scale, inside, KEEP, SUM)


def _fits(arguments: Mapping[str, Any], constants: Mapping[str, int]) -> bool:
    return constants["ROWS"] <= max(4, triton.next_power_of_2(arguments["row_count"]))


def _tile(rows: int, columns: int, registers: int | None = None) -> Tile:
    constants = {"ROWS": rows, "COLUMNS": columns, "SUMMANDS": 16}
    return Tile(constants, warps=4, stages=2, registers=registers)


_TILES = (
    _tile(64, 64),
    _tile(32, 64),
    _tile(16, 64, registers=255),
    _tile(4, 128),
)

SQUARED_CONV_INPUT = Kernel(
    squared_conv_input_kernel,
    key=("row_count", "sum_count", "sizes", "TAPS", "PHASES", "PRECISION"),
    nvidia=_TILES,
    amd=_TILES,
    interpreter={"ROWS": 32, "COLUMNS": 512, "SUMMANDS": 128},
    rewrites=("out",),
    fits=_fits,
)


def squared_conv_input(
    out: Tensor,
    decay: float,
    scale: float,
    m: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    z: Tensor | None,
    activation: str,
    slope: float,
) -> None:
    """out <- decay * out + scale * m_in; arguments as the registered op's."""
    kernel_size = weight.shape[2:]
    step = triple(weight.stride()[2:], 0)
    a, b = weight.shape[0] // groups, weight.shape[1]
    # The weight is [groups * a, b, taps]: a is o for a convolution and i for a transposed one.
    if transposed:
        operand, taps = window(m[None], input_size, kernel_size, stride, padding, dilation)
        phased = phases(kernel_size, [1], [1])
        row_count, sum_count = a, b
        strides = (weight.stride(0) * a, weight.stride(1), weight.stride(0), *step)
    else:
        operand = point(m[None])
        phased = phases(kernel_size, stride, dilation)
        taps = ONE_TAP._replace(spread=phased.spread, check=(True, True, True))
        row_count, sum_count = b, a
        strides = (weight.stride(0) * a, weight.stride(0), weight.stride(1), *step)
    positions = m.shape[0] * prod(phased.positions(input_size))
    slopes = out if z is None else z

    def programs(constants: Mapping[str, Any]) -> tuple[int, int, int]:
        down = triton.cdiv(row_count, constants["ROWS"])
        return down * triton.cdiv(positions, constants["COLUMNS"]), groups, phased.number

    SQUARED_CONV_INPUT.launch(
        programs,
        m=operand,
        weight=weight,
        weight_strides=strides,
        z=slopes,
        z_strides=point(slopes[None]).strides,
        out=out,
        out_strides=point(out[None]).strides,
        decay=decay,
        scale=scale,
        slope=slope,
        samples=m.shape[0],
        sizes=triple(input_size, 1),
        padding=triple(padding, 0),
        row_count=row_count,
        sum_count=sum_count,
        TAPS=tuple(taps),
        PHASES=tuple(phased),
        PHASED=not transposed,
        ACTIVATION=activation,
        KEEP=decay != 0.0,
        INDEX=index_type(m, out, slopes, weight, count=positions),
        **product_types(m, squared=True),
    )
