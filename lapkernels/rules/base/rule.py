"""The interface of a rule: the derivative of one call of one op, for columns and diagonals.

A rule is built while the model runs, from the op's arguments and its result. It says where the
samples of the result lie and keeps only what the derivative needs. Later it pulls columns or a
diagonal back from the result to the operands:

    columns   s [V, *out] -> [V, *in],   s_in = J^T s, for all V columns and the whole batch at once
    diagonal  m [*out]    -> [*in],      m_in[i] = sum_o J[o, i]² m[o]

Operands that are the same for all samples and depend on parameters (a weight, or an expression of
weights) get no column of their own: the rule describes how they enter as a ``Use``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from torch import Tensor

from lapkernels import ops
from lapkernels.ops.base.precision import widened
from lapkernels.rules.base.samples import MixesSamples, Samples, elementwise, follow
from lapkernels.rules.base.uses import Use


class Unsupported(NotImplementedError):
    """An op has no rule for a quantity; the message names methods that need none."""


class Kept:
    """A tensor that a rule needs later. The recorder copies it if the model overwrites it.

    It is ``stored`` as the model has it; rules compute with ``tensor``, in float32 if that is half
    precision.
    """

    __slots__ = ("stored",)

    def __init__(self, stored: Tensor) -> None:
        self.stored = stored

    @property
    def tensor(self) -> Tensor:
        """The tensor in the dtype of columns."""
        return widened(self.stored)


@dataclass(eq=False, slots=True)
class Operand:
    """A tensor argument of a call; parameters have ``reached`` it, perhaps without a derivative."""

    tensor: Tensor
    samples: Samples | None
    active: bool
    keep: Callable[[Tensor], Kept]
    reached: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def is_weight(self) -> bool:
        """Whether it depends on parameters and is the same for all samples."""
        return self.active and self.samples is None

    def kept(self) -> Kept:
        """The tensor, safe from later writes."""
        return self.keep(self.tensor)


@dataclass(slots=True)
class Call:
    """One call of an op on ``count`` samples: its tensor arguments in order, and its results.

    ``same`` groups the operands that are one value, as in ``x * x``. ``op`` does not write.
    """

    name: str
    op: Callable[..., Any]
    operands: list[Operand]
    outputs: tuple[Tensor, ...]
    keep: Callable[[Tensor], Kept]
    count: int
    same: list[list[int]]

    @property
    def out(self) -> Tensor:
        return self.outputs[0]

    def kept_output(self) -> Kept:
        """The result, safe from later writes."""
        return self.keep(self.out)

    def elementwise(self) -> Samples | None:
        """Samples in the result of a broadcast of all operands."""
        if len(self.operands) == 1 and self.count > 1:
            return self.operands[0].samples
        return elementwise([(o.samples, o.shape) for o in self.operands], tuple(self.out.shape))

    def move(self, samples: Samples | None, place: Callable[[Samples], Samples]) -> Samples | None:
        """Samples in the result; in a batch of one nothing is tracked."""
        return self.place(samples, place)[0]

    def place(
        self, samples: Samples | None, place: Callable[[Samples], Samples]
    ) -> tuple[Samples | None, ...]:
        """Samples in each result, where all results hold them in the same dimension."""
        if samples is None:
            return tuple(None for _ in self.outputs)
        if samples.count == 1:
            return tuple(follow(1, out.shape) for out in self.outputs)
        placed = place(samples)
        return tuple(placed for _ in self.outputs)

    def everywhere(self) -> tuple[Samples | None, ...]:
        """Samples in the results of a batch of one."""
        some = any(operand.samples is not None for operand in self.operands)
        return tuple(follow(1, out.shape) if some else None for out in self.outputs)

    def arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The op's arguments by name, those not given with their defaults."""
        given = _defaults(self.op)
        return {**given, **dict(zip(given, args, strict=False)), **kwargs}


@cache
def _defaults(op: Any) -> dict[str, Any]:
    """The names of an op's arguments in order, with their defaults."""
    return {argument.name: argument.default_value for argument in op._schema.arguments}


def whole_weight(call: Call, *operands: Operand | None) -> None:
    """Weights must be the same for all samples; in a batch of one autograd serves."""
    if any(operand is not None and operand.samples is not None for operand in operands):
        if call.count == 1:
            raise Unsupported("its weight depends on the sample")
        raise MixesSamples("its weight depends on the sample")


@dataclass(frozen=True, slots=True)
class Slope:
    """The derivative of an activation as a kernel reads it: see ``ops.squared_derivative``."""

    z: Tensor
    activation: str
    slope: float = 0.0

    def times_square(self, m: Tensor) -> Tensor:
        """m phi'(z)²."""
        return ops.squared_derivative(m, self.z, self.activation, self.slope)


@dataclass
class Rule:
    """The derivative of one call. ``samples`` has an entry for each result of the op.

    A result that is an image may repeat with a ``period`` along each dimension.
    """

    samples: tuple[Samples | None, ...] = ()
    uses: dict[int, Use] = field(default_factory=dict)
    period: tuple[int, ...] = ()

    # Whether the rule reads its first operand, which an in-place op overwrites.
    reads_input = True
    # Whether its columns are new tensors, which the caller may overwrite.
    makes_new = False
    # Whether it has a ``slope``, and whether it can multiply a diagonal by the slope of ``before``.
    is_activation = False
    passes_activation = False
    # Whether all its tensors are ``Kept``: with these replaced it serves another equal call.
    repeatable = False
    # Whether the result depends on the operands in a way that has a derivative.
    differentiable = True

    def columns(self, s: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Columns at the operands, from columns at the results; one entry for each operand."""
        if not self.differentiable:
            return [None] * len(wanted)
        one = only(s)
        return [self.pull(one, index) if want else None for index, want in enumerate(wanted)]

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Diagonals at the operands, from diagonals at the results."""
        if not self.differentiable:
            return [None] * len(wanted)
        one = only(m)
        return [self.pull_diagonal(one, k) if want else None for k, want in enumerate(wanted)]

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        """Columns at one operand from those at the first result; None if they are zero."""
        raise NotImplementedError

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        """The diagonal at one operand from that at the first result; None if it is zero."""
        raise Unsupported("has no rule for the approximate diagonal")

    def uses_behind(self, use: Use) -> dict[int, Use] | None:
        """Uses of the operands that are weights, from the only use of the first result, a weight.

        None: the Jacobian of the weight is made, and pulled back by ``columns``.
        """
        return None

    def slope(self) -> Slope:
        """The derivative of an activation of one operand."""
        raise NotImplementedError

    def diagonal_through(
        self, m: Sequence[Tensor | None], wanted: Sequence[bool], before: Rule
    ) -> list[Tensor | None]:
        """The same with the diagonal at the operand of ``before``, which made the first operand."""
        raise NotImplementedError

    def variance(
        self, x: Mapping[int, Tensor], weights: Mapping[int, Tensor], before: Rule | None
    ) -> Tensor | None:
        """Variance at the result from those at operands ``x`` and of ``weights``, by operand.

        The first is at the operand of ``before`` if that is given. None: the caller transposes
        ``diagonal``.
        """
        return None


def only(s: Sequence[Tensor | None]) -> Tensor:
    """Columns at the first result; raises if others have some."""
    one, *rest = s
    if one is None or any(other is not None for other in rest):
        raise Unsupported("has no rule for results other than the first")
    return one


Builder = Callable[..., Rule]
_RULES: dict[str, Builder] = {}
B = TypeVar("B", bound=Builder)


def register_rule(*names: str) -> Callable[[B], B]:
    """Decorator: build the rule of the ops with these names, for example ``"aten::relu"``.

    The builder is called as ``builder(call, *args, **kwargs)`` with the op's own arguments, tensors
    as ``Operand``; it returns a ``Rule``. In-place variants are served by the same rule.
    """

    def add(builder: B) -> B:
        for name in names:
            _RULES[name] = builder
        return builder

    return add


def builder_of(name: str) -> Builder | None:
    """The builder of an op's rule, if there is one."""
    return _RULES.get(name)


def rule_names() -> list[str]:
    """All ops that have a rule."""
    return sorted(_RULES)
