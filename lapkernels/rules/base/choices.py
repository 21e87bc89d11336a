"""Strategies that give the same numbers at different cost, and how to force one.

compressed   fewer columns behind a bottleneck
windows      columns of an image carried as windows of it
scaled       weights scaled for each sample, where columns are the same for all
sparse       zeros that all columns share are skipped
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from torch import Tensor

from lapkernels import ops
from lapkernels.ops import Geometry

Choice = Literal["compressed", "windows", "scaled", "sparse"]

_forced: ContextVar[Mapping[str, bool] | None] = ContextVar("lapkernels_choices", default=None)


@contextmanager
def forced(**choices: bool) -> Iterator[None]:
    """Use strategies wherever they apply (True), or nowhere (False), whatever they cost.

    For tests, and for benchmarks of the cost model.
    """
    unknown = set(choices) - set(get_args(Choice))
    if unknown:
        raise ValueError(f"{sorted(unknown)} are no choices: there are {get_args(Choice)}")
    token = _forced.set({**(_forced.get() or {}), **choices})
    try:
        yield
    finally:
        _forced.reset(token)


def choice(kind: Choice) -> bool | None:
    """Whether a strategy is forced (True), forbidden (False), or left to its cost (None)."""
    return (_forced.get() or {}).get(kind)


def all_forced() -> tuple[tuple[str, bool], ...]:
    """The strategies that are forced or forbidden now."""
    return tuple((_forced.get() or {}).items())


def skips_zeros(s: Tensor, geometry: Geometry) -> bool:
    """Whether zeros that columns ``s`` [V, N, O, *out] share are skipped in a layer."""
    wanted = choice("sparse")
    if wanted is None:
        return ops.mostly_zero(s, geometry)
    return wanted and ops.can_skip_zeros(s, geometry)
