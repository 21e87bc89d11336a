"""Elementwise ops of one operand, or of several with broadcasting.

With d_i the elementwise derivative of the result with respect to operand i,

    s_i = sum over broadcast entries of d_i s,      m_i = sum over broadcast entries of d_i² m.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from lapkernels.ops.base.precision import wide
from lapkernels.rules.base.derived import multiplied
from lapkernels.rules.base.local_gradient import as_tuple, filler
from lapkernels.rules.base.rule import (
    Call,
    Kept,
    Operand,
    Rule,
    Slope,
    Unsupported,
    only,
    register_rule,
)
from lapkernels.rules.base.uses import ScaleUse, Use

_BY_AUTOGRAD = (
    *("softshrink", "hardshrink", "threshold", "celu", "selu", "log_sigmoid_forward", "square"),
    *("exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal"),
    *("sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv"),
    *("abs", "pow", "clamp", "clamp_min", "clamp_max", "logit", "sinc", "lgamma", "digamma"),
    *("div", "maximum", "minimum", "fmax", "fmin", "where", "atan2", "hypot", "xlogy"),
    *("addcmul", "addcdiv", "lerp", "_prelu_kernel", "logaddexp", "logaddexp2", "masked_fill"),
    *("frac", "deg2rad", "rad2deg", "i0", "remainder", "fmod", "copysign", "nan_to_num"),
    *("special_log_ndtr", "special_entr", "special_erfcx", "special_i0e", "special_i1"),
    *("special_ndtri", "special_xlog1py", "polygamma"),
)
_CONSTANT = (
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not"),
    *("logical_xor", "bitwise_and", "bitwise_or", "bitwise_not", "sign", "sgn", "floor", "ceil"),
    *("round", "trunc", "isnan", "isinf", "isfinite", "zeros_like", "ones_like", "full_like"),
    *("empty_like", "floor_divide", "heaviside", "detach", "zero", "signbit", "isneginf"),
    *("isposinf", "fill"),
)


@register_rule(*(f"aten::{name}" for name in _BY_AUTOGRAD))
class Elementwise(Rule):
    """Any elementwise op, its derivatives by autograd."""

    repeatable = True

    def __init__(self, call: Call, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if call.name == "aten::masked_fill" and any(value.active for value in call.operands[2:]):
            raise Unsupported("a fill by a value that has a derivative")
        self.samples = call.place(call.elementwise(), lambda where: where)
        self.op = call.op
        self.operands: list[Kept] = [operand.kept() for operand in call.operands]
        self.same = call.same
        self.weights = [k for k, operand in enumerate(call.operands) if operand.is_weight]
        self.shape = call.out.shape
        self.fill = filler(args, kwargs)
        where = self.samples[0]
        for index, operand in enumerate(call.operands):
            if where is not None and operand.is_weight:
                self.uses[index] = ScaleUse(operand.shape, where, partial(self.partial, index))

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        return self._to(index, s * self.partial(index))

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        one = only(m)
        result: list[Tensor | None] = [None] * len(wanted)
        for group in self.same:
            index, *others = group
            if wanted[index]:
                total = self.partial(index)
                for other in others:
                    total = total + self.partial(other)
                result[index] = self._to(index, (one * total.square()).unsqueeze(0))[0]
        return result

    def uses_behind(self, use: Use) -> dict[int, Use] | None:
        shapes = [kept.tensor.shape for kept in self.operands]
        found: dict[int, Use] = {}
        for index in self.weights:
            if not _is_whole(index, self.same, shapes, self.shape):
                return None
            found[index] = multiplied(use, tuple(self.shape), partial(self.partial, index))
        return found

    def _to(self, index: int, s: Tensor) -> Tensor:
        operand = self.operands[index].tensor
        return sum_to_shape(s, operand.shape).to(operand.dtype)

    def partial(self, index: int) -> Tensor:
        """d out / d operand, broadcast to the result's shape."""
        with torch.enable_grad():
            tensors = [kept.tensor for kept in self.operands]
            leaf = tensors[index].expand(self.shape).detach().requires_grad_()
            tensors[index] = leaf
            args, kwargs = self.fill(tensors)
            out = as_tuple(self.op(*args, **kwargs))[0]
            return torch.autograd.grad(out, leaf, torch.ones_like(out))[0]


@register_rule("aten::mul")
class Multiply(Elementwise):
    """out = a b: each factor is the other's derivative."""

    def __init__(self, call: Call, a: Any, b: Any) -> None:
        super().__init__(call, a, b)
        self.number = next((value for value in (a, b) if not isinstance(value, Operand)), 1)
        self.dtype = wide(call.out.dtype)

    def partial(self, index: int) -> Tensor:
        """The other factor."""
        if len(self.operands) == 1:
            return torch.full((), self.number, dtype=self.dtype, device=self._device)
        return self.operands[1 - index].tensor.to(self.dtype)

    @property
    def _device(self) -> torch.device:
        return self.operands[0].tensor.device


@register_rule(*(f"aten::{name}" for name in _CONSTANT))
class Constant(Rule):
    """Comparisons, steps and new tensors: elementwise, without derivative."""

    differentiable = False
    reads_input = False

    def __init__(self, call: Call, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if call.name == "aten::fill" and any(value.active for value in call.operands[1:]):
            raise Unsupported("a fill by a value that has a derivative")
        self.samples = (call.elementwise(),)


class FromOutput(Rule):
    """An activation whose derivative is a function of its result.

    ``times`` multiplies by the derivative: it is called with columns and the result, and with
    ``grad_input`` as the output. ``kind`` is the kernels' name of the activation, given the result.
    """

    repeatable = True
    reads_input = False
    is_activation = True
    times: ClassVar[Callable[..., Tensor]]
    kind: ClassVar[str]

    def __init__(self, call: Call, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.samples = (call.elementwise(),)
        self.y = call.kept_output()

    def slope(self) -> Slope:
        return Slope(self.y.tensor, self.kind)

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        return self.times(s, self.y.tensor.expand_as(s))

    def overwrite(self, s: Tensor) -> Tensor:
        """Columns at the operand, which overwrite those at the result."""
        return self.times(s, self.y.tensor.expand_as(s), grad_input=s)

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor:
        return self.slope().times_square(m)


@register_rule("aten::add", "aten::sub", "aten::rsub", "aten::neg")
class Sum(Rule):
    """out = a + alpha b, and differences: derivatives are numbers."""

    repeatable = True
    reads_input = False

    def __init__(self, call: Call, *args: Any, alpha: float = 1) -> None:
        super().__init__()
        self.samples = (call.elementwise(),)
        self.shapes = [operand.shape for operand in call.operands]
        self.same = call.same
        self.weights = [k for k, operand in enumerate(call.operands) if operand.is_weight]
        self.shape, self.dtype, self.device = call.out.shape, call.out.dtype, call.out.device
        slots = [_coefficient(call.name, slot, alpha) for slot in range(len(args))]
        given = zip(args, slots, strict=True)
        self.coefficients = [c for value, c in given if isinstance(value, Operand)]
        where = self.samples[0]
        for index, operand in enumerate(call.operands):
            if where is not None and operand.is_weight:
                c = self.coefficients[index]
                factor = None if c == 1 else partial(_number, call.out, c)
                self.uses[index] = ScaleUse(operand.shape, where, factor)

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        c = self.coefficients[index]
        return sum_to_shape(s if c == 1 else s * c, self.shapes[index])

    def uses_behind(self, use: Use) -> dict[int, Use] | None:
        found: dict[int, Use] = {}
        for index in self.weights:
            if not _is_whole(index, self.same, self.shapes, self.shape):
                return None
            c = self.coefficients[index]
            number = partial(torch.full, (), c, dtype=self.dtype, device=self.device)
            found[index] = use if c == 1 else multiplied(use, tuple(self.shape), number)
        return found

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        one = only(m)
        result: list[Tensor | None] = [None] * len(wanted)
        for group in self.same:
            index, total = group[0], sum(self.coefficients[i] for i in group)
            if wanted[index]:
                value = (one if total * total == 1 else one * total**2).unsqueeze(0)
                result[index] = sum_to_shape(value, self.shapes[index])[0]
        return result


def _is_whole(
    index: int,
    same: Sequence[Sequence[int]],
    shapes: Sequence[Sequence[int]],
    out: Sequence[int],
) -> bool:
    """Whether an operand is neither broadcast nor stands twice."""
    return [index] in same and tuple(shapes[index]) == tuple(out)


def sum_to_shape(s: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum of [V, *out] over what an operand of this shape was broadcast along, [V, *shape]."""
    if tuple(s.shape[1:]) == tuple(shape):
        return s
    ones = (1,) * (s.dim() - 1 - len(shape))
    return s.sum_to_size(s.shape[0], *ones, *shape).reshape(s.shape[0], *shape)


def _coefficient(name: str, slot: int, alpha: float) -> float:
    """d out / d argument of a sum or difference."""
    if name == "aten::neg":
        return -1
    if name == "aten::rsub":
        return -alpha if slot == 0 else 1
    sign = -1 if name == "aten::sub" else 1
    return 1 if slot == 0 else sign * alpha


def _number(like: Tensor, value: float) -> Tensor:
    return like.new_full((), value)
