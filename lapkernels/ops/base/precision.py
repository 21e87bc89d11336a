"""Half precision is for what a model stores; sums and columns have float32."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that numbers of this dtype are computed in: float32 for half precision."""
    return torch.float32 if dtype in HALF else dtype


def widened(x: Tensor) -> Tensor:
    """``x``, in float32 where its own dtype is half precision."""
    return x.float() if x.dtype in HALF else x
