"""Properties of an op that recording needs, cached by op."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lapkernels.rules import Operand, builder_of


@dataclass(eq=False, slots=True)
class Operator:
    """An op's name and properties.

    ``writes``: it overwrites an argument; ``random``: it draws random numbers (ops with a rule
    decide by their arguments); ``fresh``: only shape and dtype of its arguments matter;
    ``detaches``: the same values without a gradient.
    """

    name: str
    writes: bool
    random: bool
    fresh: bool
    detaches: bool


@cache
def operator_of(func: Any) -> Operator:
    """Look an op up."""
    name = func._schema.name
    bare = name.removesuffix("_")
    return Operator(
        name,
        # RReLU writes noise that nothing reads.
        func._schema.is_mutable and name != "aten::rrelu_with_noise",
        torch.Tag.nondeterministic_seeded in func.tags and builder_of(bare) is None,
        # Ops of prim only ask a tensor subclass for its device.
        name.startswith(("aten::new_", "prim::")),
        name == "aten::detach",
    )


def tensors_of(arguments: Iterable[Any]) -> list[Tensor]:
    """All tensors among arguments, in order."""
    found: list[Tensor] = []
    for value in arguments:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            if not _is_sizes(value):
                found += tensors_of(value)
        elif isinstance(value, dict):
            found += tensors_of(value.values())
    return found


def wrapped(arguments: Iterable[Any], operands: Iterator[Operand]) -> list[Any]:
    """Arguments with tensors replaced by operands."""
    found: list[Any] = []
    for value in arguments:
        if isinstance(value, Tensor):
            found.append(next(operands))
        elif isinstance(value, (list, tuple)) and not _is_sizes(value):
            found.append(wrapped(value, operands))
        else:
            found.append(value)
    return found


def _is_sizes(value: list[Any] | tuple[Any, ...]) -> bool:
    """Whether this is a list of numbers, such as strides or sizes."""
    return len(value) > 0 and type(value[0]) is int


@cache
def functional_of(func: Any) -> Any:
    """The out-of-place version of an in-place op: torch's own if its arguments are the same."""
    bare = func._schema.name.removeprefix("aten::").removesuffix("_")
    packet = getattr(torch.ops.aten, bare, None)
    name = func._overloadname
    if packet is not None and name in packet.overloads():
        other = getattr(packet, name)
        if _arguments(other) == _arguments(func):
            return other
    return Functional(func)


def _arguments(func: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments]


class Functional:
    """An in-place op run on a copy of its argument, returning the new value."""

    def __init__(self, func: Any) -> None:
        self.func, self._schema = func, func._schema

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.func(x.clone(), *args, **kwargs)
