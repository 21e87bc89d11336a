"""What rounding a result may show on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums: half precision is added up in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def stored(wanted: Tensor, tolerance: Tensor, dtype: torch.dtype) -> Tensor:
    """The tolerance of a result that is rounded once more, to be stored in ``dtype``."""
    if dtype == summed_in(dtype):
        return tolerance
    unit = torch.finfo(dtype)
    # Half a unit in the last place, or of the smallest numbers.
    return tolerance + (wanted.abs() + tolerance) * unit.eps / 2 + unit.smallest_normal * unit.eps
