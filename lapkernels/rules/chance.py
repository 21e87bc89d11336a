"""Random results, which have no curvature, and dropout in eval mode."""

from __future__ import annotations

from typing import Any, TypeVar

from lapkernels.rules.base.rule import Call, Operand, Rule, register_rule
from lapkernels.rules.base.samples import RandomResult
from lapkernels.rules.elementwise import Elementwise
from lapkernels.rules.shape import Movement

T = TypeVar("T")

_RANDOM = (
    *("rand_like", "randn_like", "randint_like", "bernoulli", "_fused_dropout", "normal"),
    *("uniform", "random", "exponential", "geometric", "cauchy", "log_normal", "poisson"),
    *("multinomial", "normal_functional", "binomial", "rrelu_with_noise_functional"),
)
_REASON = "gives a random result, so there is no one function to differentiate; call model.eval()"


@register_rule(*(f"aten::{name}" for name in _RANDOM))
def random(call: Call, *args: Any, **kwargs: Any) -> Rule:
    """Refused."""
    raise RandomResult(_REASON)


@register_rule("aten::rrelu_with_noise")
def rrelu(
    call: Call,
    x: Operand,
    noise: Operand,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *args: Any,
) -> Rule:
    """A leaky ReLU in eval mode."""
    if training:
        raise RandomResult(_REASON)
    return Elementwise(call, x, noise, lower, upper, training, *args)


@register_rule("aten::native_dropout")
class Dropout(Movement):
    """The identity in eval mode."""

    def __init__(self, call: Call, x: Operand, p: float, train: bool | None = True) -> None:
        if train is not False and p > 0:
            raise RandomResult(_REASON)
        super().__init__(call, x, _same, _same, _same)


def _same(value: T) -> T:
    return value
