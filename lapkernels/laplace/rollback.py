"""Calls that succeed as a whole, or leave what they were called on as it was."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


def rolled_back(method: Method) -> Method:
    """A method after whose failure or interruption its object has the attributes of before.

    Generators among them go on from where they were. What an attribute holds must be replaced and
    not written to, as all else here is: a list gives way to a longer one.
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
