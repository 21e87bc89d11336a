"""A recorded forward pass: values, the ops that made them, and their rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lapkernels.curvature.errors import SamplesLost
from lapkernels.curvature.recording.torch_functions import Function
from lapkernels.rules import Kept, Rule, Samples


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of the forward pass. ``samples`` is None if it is the same for all samples.

    ``active`` values depend on a chosen parameter, and ``reached`` ones too, perhaps without a
    derivative, as truth values do; ``parameter`` is its name if it is one itself;
    ``without_grad`` ones were made where autograd saw nothing that requires a gradient. Of a
    ``lost`` one it is unknown which entry belongs to which sample. An image that was padded
    circularly repeats with a ``period`` along each dimension.
    """

    shape: torch.Size
    dtype: torch.dtype
    samples: Samples | None
    active: bool
    parameter: str | None = None
    without_grad: bool = False
    lost: SamplesLost | None = None
    reached: bool = False
    period: tuple[int, ...] = ()

    @property
    def features(self) -> int:
        """Number of features of each sample."""
        assert self.samples is not None
        return prod(self.shape) // self.samples.count


@dataclass(eq=False, slots=True)
class Node:
    """One op that the model ran, in the module ``path``."""

    name: str
    path: str
    inputs: list[Value]
    outputs: list[Value]
    rule: Rule
    edges: list[GradientEdge | None] = field(default_factory=list)

    @property
    def wanted(self) -> list[bool]:
        """Whether each operand gets columns: it depends on the sample and on parameters."""
        return [value.active and value.samples is not None for value in self.inputs]

    @property
    def wanted_inputs(self) -> list[Value]:
        """Those operands."""
        return [value for value, want in zip(self.inputs, self.wanted, strict=True) if want]

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.name.removeprefix('aten::')} in {self.path or 'the model'}"


class Number:
    """A placeholder for a tensor of a pass in the arguments of its calls."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def numbered(value: Any, numbers: Mapping[int, Number]) -> Any:
    """Arguments with tensors replaced by their numbers, by id."""
    kind = type(value)
    if kind is Tensor:
        return numbers[id(value)]
    if kind is list:
        return [numbered(one, numbers) for one in value]
    if kind is tuple:
        made = tuple([numbered(one, numbers) for one in value])
        # A tuple without tensors or lists is kept, so that comparing it is fast.
        return value if all(one is other for one, other in zip(made, value, strict=True)) else made
    return value


def filled(value: Any, tensors: Sequence[Tensor]) -> Any:
    """Arguments with numbers replaced by their tensors."""
    kind = type(value)
    if kind is Number:
        return tensors[value.index]
    return [filled(one, tensors) for one in value] if kind is list else value


def keep(step: Step, tensors: Sequence[Tensor], detach: bool) -> None:
    """Store the tensors of a call in its rule."""
    for kept, index in step.kept:
        kept.stored = tensors[index].detach() if detach else tensors[index]


def repeats(value: Any, known: Any, numbers: Mapping[int, Number]) -> bool:
    """Whether arguments, numbered, would be ``known``. Tensors without a number never are."""
    kind = type(value)
    if kind is Tensor:
        return known is not None and numbers.get(id(value)) is known
    if value is known and kind is not list:
        return True
    if kind is tuple or kind is list:
        if type(known) is not kind or len(known) != len(value):
            return False
        for one, other in zip(value, known, strict=True):
            if not repeats(one, other, numbers):
                return False
        return True
    return not isinstance(value, Tensor) and type(known) is kind and value == known


@dataclass(eq=False, slots=True)
class Step:
    """A call of a torch function: its arguments, and the signatures of its results.

    Keywords have ``names`` and ``values``; ``given`` are the arguments of the function's op.
    ``kept`` pairs what a rule keeps with the index of that tensor, and ``returned`` is the index of
    the operand that was returned itself, if one was.
    """

    func: Any
    function: Function
    args: Any
    names: tuple[str, ...]
    values: Any
    given: tuple[Any, ...]
    grad: bool
    kinds: list[tuple[torch.Size, torch.dtype]]
    kept: list[tuple[Kept, int]]
    returned: int | None = None


@dataclass(eq=False, slots=True)
class Calls:
    """All calls of a pass, the number of each of its tensors, and the index of its output."""

    steps: list[Step]
    numbers: list[Number]
    output: int


T = TypeVar("T")


def changed(one: T, **fields: Any) -> T:
    """A ``dataclasses.replace`` without ``__init__``, in a tenth of the time."""
    made = object.__new__(type(one))
    made.__dict__.update(one.__dict__, **fields)
    return made


@dataclass
class Trace:
    """A recorded forward pass of ``count`` samples. Nodes are those that depend on parameters.

    The ``prediction`` has float32 if the output has half precision.
    ``entries`` counts the numbers of their results that are no views. ``opaque`` names an op whose
    gradient only autograd knows, ``hidden`` is whether parameters were read where gradients are
    disabled, as in a custom autograd.Function, and ``pooled`` whether a constant was made of all
    samples. ``differentiable`` is the prediction with autograd's graph, if kept. ``calls`` are for
    replays, and a replayed pass holds a ``lease``.
    """

    count: int
    parameters: dict[str, Value]
    nodes: list[Node]
    output: Value
    prediction: Tensor
    entries: int
    differentiable: Tensor | None
    leaves: dict[str, Tensor]
    opaque: list[str]
    hidden: bool
    pooled: bool = False
    calls: Calls | None = None
    lease: object = None

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The real dtypes of all values that depend on parameters, and of the parameters."""
        values = [value for node in self.nodes for value in (*node.inputs, *node.outputs)]
        values += [self.output, *self.parameters.values()]
        return {value.dtype for value in values if value.dtype.is_floating_point}
