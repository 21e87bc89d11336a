"""Columns that are one matrix for all samples, up to a factor for each sample.

A constant output Hessian has the same columns for all samples. They stay the same through linear
layers, and an activation turns them into s[v, n, f] = rows[v, f] factor[n, f]. The linear layer
below multiplies them by its weight: with V columns and J features there, the N F J entries of
factor[n, f] weight[f, j] are fewer than the V N F of s, which need not be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lapkernels.ops.chunks import row_chunks
from lapkernels.rules.uses import ScaleUse, Use, WeightUse

# Rows that are multiplied together: large enough for a matrix product, small enough to skip zeros.
BLOCK = 64


@dataclass(frozen=True)
class Scaled:
    """Columns s[v, n] = rows[v] ∘ factor[n], with rows [V, F] and factor [N, F]."""

    rows: Tensor
    factor: Tensor

    def columns(self) -> Tensor:
        """s [V, N, F]."""
        return self.rows.unsqueeze(1) * self.factor

    def squares(self) -> Tensor:
        """sum_v s², [N, F]."""
        return self.factor.square() * self.rows.square().sum(0)

    def product(self, matrix: Tensor) -> Tensor:
        """s @ matrix [F, J], as [V, N, J]."""
        count, features = self.factor.shape
        out = self.rows.new_empty(len(self.rows), count, matrix.shape[1])
        weight, room = matrix.contiguous().unsqueeze(1), None
        for samples in row_chunks(count, matrix.numel()):
            factor = self.factor[samples].mT.contiguous().unsqueeze(2)
            if room is None or room.shape[1] != factor.shape[1]:
                room = factor.new_empty(features, factor.shape[1], matrix.shape[1])
            scaled = torch.mul(factor, weight, out=room)
            part = out.flatten(1)[:, samples.start * out.shape[2] : samples.stop * out.shape[2]]
            multiply(self.rows, scaled.flatten(1), part)
        return out


def is_shared(s: Tensor) -> bool:
    """Whether columns [V, N, F] are the same for all samples."""
    return s.dim() == 3 and (s.shape[1] == 1 or s.stride(1) == 0)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """All columns, still shared if each part is."""
    if all(is_shared(part) for part in parts):
        rows = torch.cat([part[:, :1] for part in parts])
        return rows.expand(-1, *parts[0].shape[1:])
    return torch.cat(list(parts))


def shared_product(s: Tensor, matrix: Tensor) -> Tensor:
    """s @ matrix for columns [V, N, F]; those that are the same for all samples only once."""
    if not is_shared(s):
        return s @ matrix
    out = s.new_empty(s.shape[0], 1, matrix.shape[1])
    multiply(s[:, 0], matrix, out[:, 0])
    return out.expand(-1, s.shape[1], -1)


def multiply(rows: Tensor, matrix: Tensor, out: Tensor) -> None:
    """Write rows [V, F] @ matrix [F, M] to ``out``, without the zeros beside a band of the rows.

    Unit columns have such zeros, and the triangular factor of a QR decomposition.
    """
    bands = _bands(rows) if len(rows) > BLOCK else []
    if 4 * sum(last - first for first, last in bands) >= 3 * len(bands) * rows.shape[1]:
        torch.mm(rows, matrix, out=out)
        return
    for block, (first, last) in enumerate(bands):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        torch.mm(rows[part, first:last], matrix[first:last], out=out[part])


def _bands(rows: Tensor) -> list[tuple[int, int]]:
    """First and last + 1 of the features that are not zero in each block of rows."""
    sizes = rows.abs()
    blocks = [part.amax(0).nonzero().flatten() for part in sizes.split(BLOCK)]
    return [(int(live[0]), int(live[-1]) + 1) if len(live) else (0, 0) for live in blocks]


def reads_once(use: Use, features: int) -> bool:
    """Whether each feature of a result reads weights of its own: sum_v G² needs only sum_v s²."""
    if isinstance(use, WeightUse):
        return use.geometry.is_linear and use.positions == 1
    return isinstance(use, ScaleUse) and use.factor is None and use.shape == (features,)
