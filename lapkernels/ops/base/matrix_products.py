"""Values of the ops by torch's matrix products, where those are faster than the kernels.

At a single output position, as in a plain Linear layer, G is an outer product,
G[v, n, a, p] = s[v, n, a] x[v, n, p] with p = (b, k): sums of squares factor into matrix products
of squares, and no G is ever formed.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapkernels.ops import serving
from lapkernels.ops.base.chunks import slices
from lapkernels.ops.base.correlation import windows
from lapkernels.ops.base.geometry import is_pointwise

# Entries of G at a time, which stay in cache.
CHUNK = 1 << 18


def outer_factors(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> tuple[Tensor, Tensor] | None:
    """(s [V, N, groups, a], x [V, N, groups, p]) at one position, None where a kernel serves.

    Either has V = 1 where it does not depend on the column; not both may depend on it.
    """
    columns = min(small.shape[0], large.shape[0])
    if not serving.outer_product_by_library(small.shape[3:].numel(), columns):
        return None
    if is_pointwise(kernel_size, stride, padding, groups):
        return small.flatten(2).unsqueeze(2), large.flatten(2).unsqueeze(2)
    view = windows(large, small.shape[3:], kernel_size, stride, padding, dilation)
    x = view.flatten(3).unflatten(2, (groups, large.shape[2] // groups)).flatten(3)
    s = small.flatten(2).unflatten(2, (groups, small.shape[2] // groups))
    return s, x


def squared_sum(s: Tensor, x: Tensor) -> Tensor:
    """sum_{n, v} G², [groups, a, p]."""
    return _squares(s).permute(1, 2, 0) @ _squares(x).transpose(0, 1)


def squared_dot(s: Tensor, x: Tensor, variance: Tensor) -> Tensor:
    """sum_p variance G² [N, V], variance [groups, a, p]."""
    if x.shape[0] > 1:
        return squared_dot(x, s, variance.mT)
    return (s.square() * _spread(x, variance)).sum((2, 3)).T


def gram(s: Tensor, x: Tensor, variance: Tensor) -> Tensor:
    """sum_p G variance G' [N, V, V], variance [groups, a, p]."""
    if x.shape[0] > 1:
        return gram(x, s, variance.mT)
    columns = s.flatten(2).transpose(0, 1)
    return (columns * _spread(x, variance).flatten(1).unsqueeze(1)) @ columns.mT


def _squares(factor: Tensor) -> Tensor:
    """sum_v factor², [N, groups, a]."""
    return factor[0].square() if factor.shape[0] == 1 else factor.square().sum(0)


def _spread(x: Tensor, variance: Tensor) -> Tensor:
    """sum_p variance x² [N, groups, a], of x [1, N, groups, p]."""
    return (x[0].square().transpose(0, 1) @ variance.mT).transpose(0, 1)


def takes_few(small: Tensor, large: Tensor) -> bool:
    """Whether ``squared_sum_of_few`` serves these, whose features lie side by side."""
    if large.shape[0] > 1 or small.stride(2) != 1 or large.stride(2) != 1:
        return False
    return serving.few_columns_by_library(small.shape[0], small.shape[2] * large.shape[2])


def squared_sum_of_few(small: Tensor, large: Tensor) -> Tensor:
    """sum_{n,v} (s x^T)² [A, B] of s [V, N, A, T] and x [1, N, B, T]."""
    _, count, rows, _ = small.shape
    entries = rows * large.shape[2]
    total = small.new_zeros(rows, large.shape[2])
    for s in small:
        for some in slices(count, max(1, CHUNK // max(1, entries))):
            total += (s[some] @ large[0, some].mT).square_().sum(0)
    return total
