"""A layer's two factors, as arguments of the kernels of per-sample Jacobian columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from lapkernels.kernels.triton.launch import product_types
from lapkernels.kernels.triton.operands import (
    ONE_TAP,
    Operand,
    Taps,
    index_type,
    point,
    sum_dtype,
    triple,
    window,
)


@dataclass(frozen=True)
class JacobianLayer:
    """Rows are the factor that depends on the column v; counts are those of one group."""

    rows: Operand
    columns: Operand
    row_taps: Taps
    column_taps: Taps
    row_count: int
    index_count: int
    samples: int
    column_count: int
    groups: int
    sizes: tuple[int, int, int]
    weight_strides: tuple[int, int, int]

    @classmethod
    def of(
        cls,
        small: Tensor,
        large: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> JacobianLayer:
        """From the arguments of a registered op."""
        a, p = small.shape[2] // groups, large.shape[2] // groups * prod(kernel_size)
        taps = (small.shape[3:], kernel_size, stride, padding, dilation)
        placed, placed_taps = window(large, *taps)
        here = point(small), ONE_TAP, a, p
        there = placed, placed_taps, p, 1
        # The weight is [groups * a, p].
        (rows, row_taps, row_count, row_step), (columns, column_taps, index_count, step) = (
            (there, here) if large.shape[0] > 1 else (here, there)
        )
        return cls(
            rows, columns, row_taps, column_taps, row_count, index_count, small.shape[1],
            max(small.shape[0], large.shape[0]), groups, triple(small.shape[3:], 1),
            (a * p, row_step, step),
        )  # fmt: skip

    def arguments(self, parts: Tensor) -> dict[str, Any]:
        """Arguments that all kernels share; ``parts`` has their partial sums."""
        positions = prod(self.sizes)
        tensors = (self.rows.data, self.columns.data, parts)
        return {
            "parts": parts,
            "rows": self.rows,
            "columns": self.columns,
            "column_count": self.column_count,
            "positions": positions,
            "sizes": self.sizes,
            "row_count": self.row_count,
            "index_count": self.index_count,
            "ROW_TAPS": tuple(self.row_taps),
            "COLUMN_TAPS": tuple(self.column_taps),
            "INDEX": index_type(*tensors, count=self.groups * self.weight_strides[0]),
            **product_types(self.rows.data),
        }

    def parts(self, splits: int, entries: int) -> Tensor:
        """An uninitialised buffer for partial sums."""
        data = self.rows.data
        return torch.empty(splits, entries, dtype=sum_dtype(data.dtype), device=data.device)
