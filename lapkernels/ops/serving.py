"""Which implementation serves: kernel or kernel, kernel or torch, wherever sizes decide.

Each predicate below is a row of ``TABLE``, and sees sizes alone. Ops, rules and the backward pass
ask it and compare no sizes themselves. Values are the same on either side; the thresholds are
where the times measured cross. A forced backend asks none that ends in ``by_library``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Literal, ParamSpec, get_args

import torch

P = ParamSpec("P")


@dataclass(frozen=True)
class Row:
    """A row: ``by`` serves ``ops`` ``where`` the predicate holds."""

    ops: str
    by: str
    where: str
    measured: str
    holds: Callable[..., bool]


TABLE: dict[str, Row] = {}


def row(
    ops: str, by: str, where: str, measured: str
) -> Callable[[Callable[P, bool]], Callable[P, bool]]:
    """Decorator: make a predicate a row of the table, and ask the table in its place."""

    def add(holds: Callable[P, bool]) -> Callable[P, bool]:
        name = holds.__name__
        TABLE[name] = Row(ops, by, where, measured, holds)

        @wraps(holds)
        def ask(*sizes: P.args, **options: P.kwargs) -> bool:
            return TABLE[name].holds(*sizes, **options)

        return ask

    return add


EPYC = "AMD EPYC, 2 cores, 2026-11-"

# A convolution towards the input: channels on either side, and weights in a group.
CHANNELS, WEIGHTS = 8, 2048


@row(
    "conv_input",
    "torch's convolution",
    "kernels of one entry, groups of one channel, or a group of more than "
    f"{CHANNELS} channels on either side with {WEIGHTS} weights or more",
    EPYC + "17",
)
def conv_input_by_library(weight: Sequence[int], groups: int) -> bool:
    """Near the machine's peak with many channels. ``weight`` is the shape [A, B / groups, *k]."""
    rows, columns, *kernel = weight[0] // groups, *weight[1:]
    if prod(kernel) == 1 or rows == columns == 1 < groups:
        return True
    return min(rows, columns) > CHANNELS and rows * columns * prod(kernel) >= WEIGHTS


@row(
    "conv_weight, squared_conv_weight, layer_chain",
    "torch's convolution",
    "kernels of one entry, groups of one channel",
    EPYC + "18",
)
def conv_weight_by_library(
    rows: int, channels: int, kernel_size: Sequence[int], groups: int
) -> bool:
    """Products of matrices, and of single entries."""
    return prod(kernel_size) == 1 or rows == channels == groups > 1


@row(
    "squared_conv_input",
    "torch's convolution",
    f"groups of one channel; a stride, in one group, with more than {CHANNELS} channels on either "
    "side, in float32",
    EPYC + "18",
)
def squared_conv_input_by_library(
    weight: Sequence[int], stride: Sequence[int], groups: int, transposed: bool, dtype: torch.dtype
) -> bool:
    """A kernel scatters the results of a stride, phase by phase. ``weight`` as above."""
    rows, columns = weight[0] // groups, weight[1]
    if groups > 1:
        return rows == columns == 1
    scattered = max(stride) > 1 and not transposed
    return scattered and min(rows, columns) > CHANNELS and dtype == torch.float32


# Entries of a row of an image.
WIDTH = 32


@row(
    "squared_conv_input, layer_chain",
    "torch's convolution",
    f"more than {CHANNELS} channels made, in a group, of rows of fewer than {WIDTH} "
    "entries, in float32",
    EPYC + "19",
)
def short_rows_by_library(channels: int, width: int) -> bool:
    """A kernel's vectors lie along the rows of an image."""
    return channels > CHANNELS and width < WIDTH


@row(
    "squared_conv_input, squared_conv_weight",
    "torch's convolution",
    "tensors on a GPU",
    "not measured: a convolution of squares may use tensor cores, and the kernels do not",
)
def squared_convolution_by_library(on_cpu: bool) -> bool:
    """Squaring one factor is cheap beside the convolution."""
    return not on_cpu


@row(
    "squared_conv_input, squared_conv_weight",
    "torch's matrix product",
    "Linear layers; one tap, stride 1, no padding, one group",
    EPYC + "16",
)
def matrix_product_by_library(pointwise: bool) -> bool:
    """One matrix product over all positions."""
    return pointwise


@row(
    "jacobian_squared_sum, jacobian_squared_dot, jacobian_gram",
    "torch's matrix products of squares",
    "one output position, and a tensor that does not depend on the column",
    EPYC + "16",
)
def outer_product_by_library(positions: int, columns: int) -> bool:
    """Sums of squares factor. ``columns`` are those of the tensor that has fewer."""
    return positions == 1 >= columns


# Columns, and entries of one sample's Jacobian.
FEW_COLUMNS, JACOBIAN = 4, 1 << 20


@row(
    "jacobian_squared_sum",
    "torch's batched products",
    f"at most {FEW_COLUMNS} columns of a Linear layer on sequences, and {JACOBIAN} weights",
    EPYC + "17",
)
def few_columns_by_library(columns: int, weights: int) -> bool:
    """A kernel transposes the positions, which pays for more columns."""
    return columns <= FEW_COLUMNS and weights <= JACOBIAN


MOMENT_ROWS, MOMENT_FEATURES = 96, 448


@row(
    "kronecker_input, kronecker_output",
    "torch's matrix product",
    f"at most {MOMENT_ROWS} rows or {MOMENT_FEATURES} features, side by side in memory",
    EPYC + "17",
)
def row_moments_by_library(rows: int, features: int) -> bool:
    """A kernel multiplies each pair of features once, which pays where both are many."""
    return rows <= MOMENT_ROWS or features <= MOMENT_FEATURES


MOMENT_CHANNELS, MOMENT_POSITIONS = 8, 256


@row(
    "kronecker_input, kronecker_output",
    "torch's batched products",
    f"at most {MOMENT_CHANNELS} channels at {MOMENT_POSITIONS} positions or more",
    EPYC + "17",
)
def channel_moments_by_library(channels: int, positions: int) -> bool:
    """So few features fill no vector of a kernel."""
    return channels <= MOMENT_CHANNELS and positions >= MOMENT_POSITIONS


POOLED, POOLED_PIXELS = 1 << 15, 64


@row(
    "max_pool2d",
    "a kernel, torch elsewhere",
    f"{POOLED} entries or more in maps of {POOLED_PIXELS} pixels or more",
    EPYC + "17",
)
def max_pool_by_kernel(entries: int, pixels: int) -> bool:
    """Rows of small maps fill no vectors, and few entries do not pay for the call."""
    return entries >= POOLED and pixels >= POOLED_PIXELS


# Entries of all columns from which looking for zeros pays, and the share that may be none.
LOOKED_FOR, DENSITY = 1 << 16, 0.4


@row(
    "jacobian_squared_sum, conv_input",
    "the density of the columns is looked at",
    f"{LOOKED_FOR} entries or more, of a convolution in one group",
    EPYC + "16",
)
def zeros_looked_for(entries: int) -> bool:
    """Looking costs a read of some entries."""
    return entries >= LOOKED_FOR


@row(
    "jacobian_squared_sum, conv_input",
    "sparse_squared_sum, sparse_conv_input",
    f"less than {DENSITY:.0%} of the entries looked at are not zero",
    EPYC + "16",
)
def zeros_skipped(nonzero: int, looked_at: int) -> bool:
    """A sparse kernel visits the entries one by one."""
    return nonzero < DENSITY * looked_at


CHAINED_ROWS = 256


@row(
    "layer_chain",
    "a kernel, layer by layer elsewhere",
    f"Linear layers on at most {CHAINED_ROWS} rows",
    EPYC + "17",
)
def linear_chained(rows: int) -> bool:
    """A kernel is bound by reading the weight, and reads it once for all rows."""
    return rows <= CHAINED_ROWS


# Rows of a block, and the share of its features that a band may have.
BLOCK, BAND = 64, 0.75


@row(
    "products of shared columns, scaled_product's reference",
    "a product for each block of rows, without the zeros beside its band",
    f"more than {BLOCK} rows whose bands have less than {BAND:.0%} of the features",
    EPYC + "16",
)
def band_multiplied(kept: int, features: int) -> bool:
    """``kept`` and ``features`` are sums over blocks."""
    return kept < BAND * features


# Of an entry along one dimension.
COPIES = 4


@row(
    "nearest-neighbour resizing, forward and back",
    "copies side by side and their sums, torch's own elsewhere",
    f"whole factors up to {COPIES}",
    EPYC + "17",
)
def copies_stacked(factor: int) -> bool:
    """Written faster than torch looks entries up, and added faster than it scatters them."""
    return factor <= COPIES


# Routes of the backward pass that differ in cost alone, chosen by a model of it or by density:
# compressed   fewer columns behind a bottleneck
# windows      columns of an image carried as windows of it
# scaled       weights scaled for each sample, where columns are the same for all
# sparse       zeros that all columns share are skipped
Choice = Literal["compressed", "windows", "scaled", "sparse"]

_forced: ContextVar[Mapping[str, bool] | None] = ContextVar("lapkernels_choices", default=None)


@contextmanager
def forced(**choices: bool) -> Iterator[None]:
    """Use strategies wherever they apply (True), or nowhere (False), whatever they cost.

    For tests, and for benchmarks of the cost model.
    """
    unknown = set(choices) - set(get_args(Choice))
    if unknown:
        raise ValueError(f"{sorted(unknown)} are no choices: there are {get_args(Choice)}")
    token = _forced.set({**(_forced.get() or {}), **choices})
    try:
        yield
    finally:
        _forced.reset(token)


def choice(kind: Choice) -> bool | None:
    """Whether a strategy is forced (True), forbidden (False), or left to its cost (None)."""
    return (_forced.get() or {}).get(kind)


def all_forced() -> tuple[tuple[str, bool], ...]:
    """The strategies that are forced or forbidden now."""
    return tuple((_forced.get() or {}).items())
