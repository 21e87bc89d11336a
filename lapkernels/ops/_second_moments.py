"""Second moments by torch's matrix products, where those are faster than the kernels.

The kernels multiply each pair of features once, which pays only where rows and features are many.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Up to so many rows, or features, one product of whole matrices is faster.
ROWS, FEATURES = 96, 448
# So few features of so many positions fill no vector of the kernels.
FEW, MANY = 8, 256


def moments_by_library(x: Tensor) -> Tensor | None:
    """sum_{n,t} x_{n,t} x_{n,t}^T [1, I, I] of ``x`` [N, I, T]; None where a kernel is faster."""
    count, features, positions = x.shape
    rows = x.mT
    if rows.is_contiguous():
        if count * positions > ROWS and features > FEATURES:
            return None
        rows = rows.reshape(-1, features)
        return (rows.T @ rows).unsqueeze(0)
    if features <= FEW and positions >= MANY:
        return torch.bmm(x, rows).sum(0, keepdim=True)
    return None
