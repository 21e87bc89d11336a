"""Columns that are one matrix for all samples, up to a factor for each sample.

A constant output Hessian has the same columns for all samples. They stay the same through linear
layers, and behind an activation they are s[v, n, f] = rows[v, f] factor[n, f]. The linear layer
below multiplies them by its weight: with V columns and J features there, the N F J entries of
factor[n, f] weight[f, j] may be fewer than the V N F of s, which are then never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lapkernels.ops.scaled_product import banded_product, scaled_product
from lapkernels.rules.base.uses import ScaleUse, Use, WeightUse


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
        return scaled_product(self.rows, self.factor, matrix)


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
    """s @ matrix for columns [V, N, F]; once if they are the same for all samples."""
    if not is_shared(s):
        return s @ matrix
    return banded_product(s[:, 0], matrix).unsqueeze(1).expand(-1, s.shape[1], -1)


def reads_once(use: Use, features: int) -> bool:
    """Whether each feature of a result reads weights of its own: sum_v G² needs only sum_v s²."""
    if isinstance(use, WeightUse):
        return use.geometry.is_linear and use.positions == 1
    return isinstance(use, ScaleUse) and use.factor is None and use.shape == (features,)
