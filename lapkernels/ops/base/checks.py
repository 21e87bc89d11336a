"""Checks of numbers on any device, which is waited for once for all that are gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite

import torch
from torch import Tensor

# A number that is finite if all is right, and what raises if it is not.
Check = tuple[Tensor, Callable[[], None]]
_gathered: ContextVar[list[Check] | None] = ContextVar("lapkernels_checks", default=None)


def expect_finite(total: Tensor, explain: Callable[[], None]) -> None:
    """Call ``explain``, which raises if it finds what is wrong, unless a number is finite.

    The sum of some values is finite only if they are; where it overflows though they are,
    ``explain`` finds nothing.
    """
    waiting = _gathered.get()
    if waiting is not None and not total.is_cpu:
        waiting.append((total, explain))
    elif not isfinite(total.item()):
        explain()


def expect(good: Tensor, explain: Callable[[], None]) -> None:
    """Call ``explain`` unless all of ``good`` holds."""
    every = good.all()
    if every.is_cpu:
        if not every.item():
            explain()
    else:
        expect_finite(1.0 / every, explain)


@contextmanager
def gathered() -> Iterator[None]:
    """Inside, checks of what is on a device wait; they are read together at the end."""
    waiting: list[Check] = []
    token = _gathered.set(waiting)
    try:
        yield
    finally:
        _gathered.reset(token)
    totals = [total.to(waiting[0][0].device, torch.float32) for total, _ in waiting]
    if totals and not isfinite(torch.stack(totals).sum().item()):
        for _, explain in waiting:
            explain()
