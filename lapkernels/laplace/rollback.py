"""Methods that succeed or leave their object unchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


def rolled_back(method: Method) -> Method:
    """Restore the object's attributes if the method fails or is interrupted.

    Random generators among them are reset to their state. The method must replace attributes
    instead of mutating what they hold: a longer list, not an append.
    """

    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        held = [value for value in before.values() if isinstance(value, torch.Generator)]
        states = [generator.get_state() for generator in held]
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            self.__dict__ = before
            for generator, state in zip(held, states, strict=True):
                generator.set_state(state)
            raise

    return cast(Method, run)
