"""Few columns of a Linear layer on sequences: G of some samples by torch's batched products.

The kernels turn positions, which lie apart here, into lines, which pays for more columns.
"""

from __future__ import annotations

from torch import Tensor

from lapkernels.ops.chunks import slices

# Columns for which torch's products were measured to be as fast or faster.
COLUMNS = 4
# Entries of G at a time, which stay in cache, and those of one sample at most.
CHUNK, MOST = 1 << 18, 1 << 20


def squared_sum_of_few(small: Tensor, large: Tensor) -> Tensor | None:
    """sum_{n,v} (s x^T)² [A, B] of s [V, N, A, T] and x [1, N, B, T], features side by side.

    None where a kernel is faster.
    """
    columns, count, rows, _ = small.shape
    entries = rows * large.shape[2]
    if large.shape[0] > 1 or columns > COLUMNS or entries > MOST:
        return None
    if small.stride(2) != 1 or large.stride(2) != 1:
        return None
    total = small.new_zeros(rows, large.shape[2])
    for s in small:
        for some in slices(count, max(1, CHUNK // max(1, entries))):
            total += (s[some] @ large[0, some].mT).square_().sum(0)
    return total
