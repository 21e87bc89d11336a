"""Elementwise activations with explicit derivatives.

Columns are multiplied by the derivative, which is computed once; a diagonal takes one pass of
``squared_derivative``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Slope, only, register_rule
from lapkernels.rules.elementwise import Elementwise, FromOutput

aten = torch.ops.aten


@register_rule("aten::relu")
class Relu(FromOutput):
    """max(z, 0), whose derivative is its own square."""

    times = staticmethod(partial(aten.threshold_backward, threshold=0))
    kind = "relu"

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor:
        return self.times(m, self.y.tensor)


@register_rule("aten::sigmoid")
class Sigmoid(FromOutput):
    """1 / (1 + exp(-z)), with the derivative y (1 - y)."""

    times = aten.sigmoid_backward
    kind = "sigmoid_of_result"


@register_rule("aten::tanh")
class Tanh(FromOutput):
    """tanh(z), with the derivative 1 - y²."""

    times = aten.tanh_backward
    kind = "tanh_of_result"


# By op: the names of its scalar arguments, and torch's backward kernel.
_BACKWARD: dict[str, tuple[tuple[str, ...], Callable[..., Tensor]]] = {
    "aten::leaky_relu": (
        ("negative_slope",),
        lambda s, z, slope: aten.leaky_relu_backward(s, z, slope, False),
    ),
    "aten::elu": (
        ("alpha", "scale", "input_scale"),
        lambda s, z, *numbers: aten.elu_backward(s, *numbers, False, z),
    ),
    "aten::softplus": (("beta", "threshold"), aten.softplus_backward),
    "aten::silu": ((), aten.silu_backward),
    "aten::mish": ((), aten.mish_backward),
    "aten::hardtanh": (("min_val", "max_val"), aten.hardtanh_backward),
    "aten::hardsigmoid": ((), aten.hardsigmoid_backward),
    "aten::hardswish": ((), aten.hardswish_backward),
    "aten::gelu": (
        ("approximate",),
        lambda s, z, kind: aten.gelu_backward(s, z, approximate=kind),
    ),
}


@register_rule(*_BACKWARD)
class Activation(Elementwise):
    """A function of one tensor that torch has a derivative kernel for."""

    def __init__(self, call: Call, *args: Any, **kwargs: Any) -> None:
        super().__init__(call, *args, **kwargs)
        names, self.backward = _BACKWARD[call.name]
        given = call.arguments(args, kwargs)
        self.numbers = [given[name] for name in names]
        self.kind = self._kind(call.name.removeprefix("aten::"), call.out.dtype)

    def partial(self, index: int) -> Tensor:
        """The derivative, of the operand's shape."""
        z = self.operands[0].tensor
        return self.backward(torch.ones_like(z), z, *self.numbers)

    @property
    def is_activation(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kind is not None

    def slope(self) -> Slope:
        assert self.kind is not None
        return Slope(self.operands[0].tensor, *self.kind)

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        if self.kind is None:
            return super().diagonal(m, wanted)
        return [self.slope().times_square(only(m))]

    def _kind(self, name: str, dtype: torch.dtype) -> tuple[str, float] | None:
        """The name and slope of the same function in ``ops.ACTIVATIONS``, if it is there."""
        if name == "leaky_relu":
            return name, self.numbers[0]
        if name == "elu":
            alpha, *scales = self.numbers
            return (name, alpha) if scales == [1, 1] else None
        if name == "softplus":
            # torch is linear beyond the threshold; from 20 on float32 cannot distinguish the two.
            beta, threshold = self.numbers
            return (name, beta) if threshold >= 20 and dtype == torch.float32 else None
        if name == "gelu":
            return (name, 0.0) if self.numbers == ["none"] else None
        return (name, 0.0) if name == "silu" else None
