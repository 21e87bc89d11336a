"""Layers with a single output position, a plain Linear above all: G is an outer product.

With G[v, n, a, p] = s[v, n, a] x[v, n, p], p = (b, k), sums of squares factor into matrix products
of squares, and no G is ever formed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.ops._correlation import windows


def outer_factors(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> tuple[Tensor, Tensor] | None:
    """(s [V, N, groups, a], x [V, N, groups, p]) if there is one position, else None.

    Either has V = 1 where it does not depend on the column; not both may depend on it.
    """
    if small.shape[3:].numel() != 1 or min(small.shape[0], large.shape[0]) > 1:
        return None
    view = windows(large, small.shape[3:], kernel_size, stride, padding, dilation)
    x = view.flatten(3).unflatten(2, (groups, large.shape[2] // groups)).flatten(3)
    s = small.flatten(2).unflatten(2, (groups, small.shape[2] // groups))
    return s, x


def squared_sum(s: Tensor, x: Tensor) -> Tensor:
    """sum_{n, v} G², [groups, a, p]."""
    return torch.einsum("nga,ngp->gap", s.square().sum(0), x.square().sum(0))


def squared_dot(s: Tensor, x: Tensor, variance: Tensor) -> Tensor:
    """sum_p variance G² [N, V], variance [groups, a, p]."""
    if x.shape[0] > 1:
        return squared_dot(x, s, variance.mT)
    spread = torch.einsum("ngp,gap->nga", x[0].square(), variance)
    return (s.square() * spread).flatten(2).sum(2).T


def gram(s: Tensor, x: Tensor, variance: Tensor) -> Tensor:
    """sum_p G variance G' [N, V, V], variance [groups, a, p]."""
    if x.shape[0] > 1:
        return gram(x, s, variance.mT)
    spread = torch.einsum("ngp,gap->nga", x[0].square(), variance).flatten(1)
    columns = s.flatten(2).transpose(0, 1)
    return (columns * spread.unsqueeze(1)) @ columns.mT
