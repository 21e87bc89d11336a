"""Columns and samples a few at a time, where the Jacobian G [V, N, P] itself is needed."""

from __future__ import annotations

from collections.abc import Iterator

# Entries of G in memory at a time.
CHUNK = 1 << 20


def slices(count: int, step: int) -> Iterator[slice]:
    """Slices of 0 to ``count`` in steps."""
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def row_chunks(count: int, entries: int) -> Iterator[slice]:
    """Slices of samples such that ``entries`` numbers for each stay within ``CHUNK``."""
    return slices(count, max(1, CHUNK // max(1, entries)))


def jacobian_chunks(columns: int, count: int, entries: int) -> Iterator[tuple[slice, slice]]:
    """Slices of columns and of samples such that ``entries`` numbers for each stay in ``CHUNK``."""
    step = max(1, min(columns, CHUNK // max(1, entries)))
    for some in slices(columns, step):
        for rows in row_chunks(count, step * entries):
            yield some, rows
