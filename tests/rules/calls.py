"""One call of an op, its rule, and what the rule must give: everything from the dense Jacobian."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pytest import param
from torch import Tensor

from lapkernels.rules import (
    Call,
    Kept,
    LocalGradient,
    Operand,
    Rule,
    Samples,
    Unsupported,
    builder_of,
    follow,
)

aten = torch.ops.aten


@dataclass(frozen=True)
class Arg:
    """A tensor argument: its values, where its samples lie, and whether parameters enter it."""

    tensor: Tensor
    samples: Samples | None = None
    active: bool = True


def x(*shape: int, dim: int = 0, outer: int = 1, inner: int = 1, active: bool = True) -> Arg:
    """A value of the samples."""
    count = shape[dim] // (outer * inner)
    return Arg(torch.randn(shape, dtype=torch.float64), Samples(count, dim, outer, inner), active)


def given(tensor: Tensor, dim: int = 0, active: bool = False) -> Arg:
    """A value of the samples with these entries."""
    return Arg(tensor, Samples(tensor.shape[dim], dim), active)


def w(*shape: int) -> Arg:
    """A weight."""
    return Arg(torch.randn(shape, dtype=torch.float64))


def k(tensor: Tensor) -> Arg:
    """A constant."""
    return Arg(tensor, None, False)


@dataclass(frozen=True)
class Case:
    """``args()`` are the op's arguments, tensors as ``Arg``; a dict at the end has keywords."""

    id: str
    op: Any
    args: Callable[[], Sequence[Any]]
    kwargs: dict[str, Any]
    diagonal: bool = True
    alone: bool = False

    @property
    def name(self) -> str:
        """The op's name, as rules are registered."""
        return self.op._schema.name

    def arguments(self) -> list[Any]:
        """Fresh arguments, the same on every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.id.removesuffix("-alone").encode()))
            return [self._alone(value) for value in self.args()]

    def _alone(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._alone(entry) for entry in value]
        if isinstance(value, dict):
            return {key: self._alone(entry) for key, entry in value.items()}
        if not self.alone or not isinstance(value, Arg) or value.samples is None:
            return value
        return replace(value, samples=follow(1, value.tensor.shape))


def case(
    id: str, op: Any, args: Callable[[], Sequence[Any]], *, diagonal: bool = True, **kwargs: Any
) -> list[Case]:
    """The case, and the same with all entries in one sample."""
    first = Case(id, op, args, kwargs, diagonal)
    return [first, replace(first, id=f"{id}-alone", alone=True)]


def params(cases: Sequence[Case]) -> list[Any]:
    return [param(one, id=one.id) for one in cases]


class Built:
    """A case's call and rule, and its dense Jacobian."""

    def __init__(self, one: Case, generic: bool = False) -> None:
        given = one.arguments()
        named = given.pop() if given and isinstance(given[-1], dict) else {}
        self.args = [*_args(given), *_args(list(named.values()))]
        self.op, self.kwargs, self.given = one.op, {**one.kwargs, **named}, given
        outputs = _tensors(self.run([arg.tensor for arg in self.args]))
        operands = [Operand(a.tensor, a.samples, a.active, Kept) for a in self.args]
        groups: dict[int, list[int]] = {}
        for index, arg in enumerate(self.args):
            groups.setdefault(id(arg), []).append(index)
        self.same = list(groups.values())
        placed = [arg.samples for arg in self.args if arg.samples is not None]
        self.count = placed[0].count
        call = Call(one.name, one.op, operands, outputs, Kept, self.count, self.same)
        rest = iter(operands)
        wrapped = [_put(value, rest) for value in given]
        kwargs = {key: _put(value, rest) for key, value in self.kwargs.items()}
        builder = LocalGradient if generic else builder_of(one.name)
        assert builder is not None
        try:
            self.rule: Rule = builder(call, *wrapped, **kwargs)
        except Unsupported:
            self.rule = LocalGradient(call, *wrapped, **kwargs)
        self.outputs = outputs
        self.floats = [i for i, out in enumerate(outputs) if out.is_floating_point()]

    def run(self, tensors: Sequence[Tensor]) -> Any:
        rest = iter(tensors)
        args = [_put(value, rest) for value in self.given]
        return self.op(*args, **{key: _put(value, rest) for key, value in self.kwargs.items()})

    def jacobian(self, index: int) -> Tensor:
        """d first result / d operand, [*out, *in]."""

        def first(value: Tensor) -> Tensor:
            tensors = [arg.tensor for arg in self.args]
            tensors[index] = value
            return _tensors(self.run(tensors))[0]

        value = self.args[index].tensor
        try:
            found = torch.autograd.functional.jacobian(first, value)
        except RuntimeError as error:
            if "derivative for" not in str(error):
                raise
            return _differences(first, value)
        assert isinstance(found, Tensor)
        return found

    def labels(self, samples: Samples, shape: Sequence[int]) -> Tensor:
        """The sample of each entry."""
        parts = torch.zeros(list(shape), dtype=torch.long).contiguous()
        view = samples.split(parts)
        view += torch.arange(samples.count).reshape(-1, *(1 for _ in view.shape[1:]))
        return parts


def _differences(function: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """The Jacobian of an op that moves entries and has no derivative in torch."""
    zero = function(torch.zeros_like(value))
    units = torch.eye(value.numel(), dtype=value.dtype).reshape(-1, *value.shape)
    columns = torch.stack([function(unit) - zero for unit in units], -1)
    return columns.reshape(*zero.shape, *value.shape)


def _args(values: Sequence[Any]) -> Iterator[Arg]:
    for value in values:
        if isinstance(value, Arg):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _args(value)


def _put(value: Any, rest: Iterator[Any]) -> Any:
    if isinstance(value, Arg):
        return next(rest)
    if isinstance(value, (list, tuple)):
        return [_put(entry, rest) for entry in value]
    return value


def _tensors(value: Any) -> tuple[Tensor, ...]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(entry for entry in values if isinstance(entry, Tensor))
