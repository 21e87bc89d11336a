"""Autocast: a model runs under the caller's, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
# Pairs of a kind of device and the dtype that its ops are rounded to.
Casts = tuple[tuple[str, torch.dtype], ...]

_casts: ContextVar[Casts] = ContextVar("casts", default=())


def present_casts() -> Casts:
    """The caller's autocast, inside a function that leaves it to the model."""
    return _casts.get()


def for_models_alone(function: Callable[P, R]) -> Callable[P, R]:
    """Inside, autocast is off, and models run under that of the caller."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        on = [kind for kind in kinds if torch.is_autocast_enabled(kind)]
        if not on:
            return function(*args, **kwargs)
        token = _casts.set(tuple((kind, torch.get_autocast_dtype(kind)) for kind in on))
        try:
            with ExitStack() as stack:
                for kind in on:
                    stack.enter_context(torch.autocast(kind, enabled=False))
                return function(*args, **kwargs)
        finally:
            _casts.reset(token)

    return run


@contextmanager
def callers_autocast() -> Iterator[None]:
    """Inside, ops are rounded as the caller of a function for models alone has it."""
    with ExitStack() as stack:
        for kind, dtype in _casts.get():
            # A weight is cast each time: a recorded pass has to see it.
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
        yield
