"""Ops that act entry by entry."""

from __future__ import annotations

from typing import Any

import torch

from lapkernels.rules import MixesSamples, activations, elementwise
from tests.rules import check
from tests.rules.calls import Arg, Built, Case, aten, case, given, k, w, x


def _positive() -> Arg:
    return given(torch.rand(3, 4, dtype=torch.float64) * 0.8 + 0.1, active=True)


def _above_one() -> Arg:
    return given(torch.rand(3, 4, dtype=torch.float64) + 1.1, active=True)


def _small() -> Arg:
    return given(torch.rand(3, 4, dtype=torch.float64) - 0.5, active=True)


ONE = (
    *("mish", "hardtanh", "hardsigmoid", "hardswish", "softshrink", "hardshrink", "celu", "selu"),
    *("log_sigmoid_forward", "square", "exp", "exp2", "expm1", "sin", "cos", "tan", "atan"),
    *("sinh", "cosh", "asinh", "erf", "erfc", "abs", "sinc", "frac", "deg2rad", "rad2deg", "i0"),
    *("nan_to_num", "special_log_ndtr", "special_erfcx", "special_i0e", "special_i1", "relu"),
    *("sigmoid", "tanh", "neg", "leaky_relu", "elu", "softplus", "silu", "gelu"),
)
POSITIVE = (
    *("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma"),
    *("logit", "special_entr", "special_ndtri"),
)
SMALL = ("asin", "acos", "atanh", "erfinv")
TWO = (
    *("atan2", "hypot", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2"),
    "_prelu_kernel",
)
CONSTANT_ONE = (
    *("sign", "sgn", "floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite"),
    *("zeros_like", "ones_like", "empty_like", "logical_not", "signbit", "isneginf", "isposinf"),
    *("detach", "zero"),
)
CONSTANT_TWO = {
    **{name: "Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: "default" for name in ("logical_and", "logical_or", "logical_xor", "heaviside")},
    "floor_divide": "default",
}


def _op(name: str, overload: str = "default") -> Any:
    return getattr(getattr(aten, name), overload)


def _ints() -> Arg:
    return given(torch.randint(0, 4, (3, 4)))


def _zeros() -> Arg:
    return k(torch.zeros(3, 4, dtype=torch.float64))


def _mask() -> Arg:
    return given(torch.rand(3, 4) > 0.5)


CASES: list[Case] = [
    *(c for name in ONE for c in case(name, _op(name), lambda: (x(3, 4),))),
    *(c for name in POSITIVE for c in case(name, _op(name), lambda: (_positive(),))),
    *(c for name in SMALL for c in case(name, _op(name), lambda: (_small(),))),
    *case("acosh", _op("acosh"), lambda: (_above_one(),)),
    *(c for name in TWO for c in case(name, _op(name), lambda: (x(3, 4), x(3, 4)))),
    *(c for name in TWO for c in case(f"{name}-weight", _op(name), lambda: (x(3, 4), w(4)))),
    *(c for name in CONSTANT_ONE for c in case(name, _op(name), lambda: (x(3, 4),))),
    *(
        c
        for name, overload in CONSTANT_TWO.items()
        for c in case(name, _op(name, overload), lambda: (x(3, 4), x(3, 4)))
    ),
    *case("full-like", _op("full_like"), lambda: (x(3, 4), 2.0)),
    *case("fill", _op("fill", "Scalar"), lambda: (x(3, 4), 2.0)),
    *(
        c
        for name in ("bitwise_and", "bitwise_or")
        for c in case(name, _op(name, "Tensor"), lambda: (_ints(), _ints()))
    ),
    *case("bitwise-not", _op("bitwise_not"), lambda: (_ints(),)),
    *case("leaky-relu-slope", _op("leaky_relu"), lambda: (x(3, 4), 0.3)),
    *case("elu-scaled", _op("elu"), lambda: (x(3, 4), 0.7, 1.3, 0.5)),
    *case("elu-alpha", _op("elu"), lambda: (x(3, 4), 0.7)),
    *case("softplus-threshold", _op("softplus"), lambda: (x(3, 4), 3.0, 0.5)),
    *case("gelu-tanh", _op("gelu"), lambda: (x(3, 4),), approximate="tanh"),
    *case("relu-merged", _op("relu"), lambda: (x(12, 4, outer=2, inner=2),)),
    *case("silu-second", _op("silu"), lambda: (x(2, 3, dim=1),)),
    *case("threshold", _op("threshold"), lambda: (x(3, 4), 0.1, -2.0)),
    *case("clamp", _op("clamp"), lambda: (x(3, 4), -0.5, 0.4)),
    *case("clamp-weight", _op("clamp", "Tensor"), lambda: (x(3, 4), w(4))),
    *case("clamp-min", _op("clamp_min"), lambda: (x(3, 4), -0.5)),
    *case("clamp-max", _op("clamp_max"), lambda: (x(3, 4), 0.5)),
    *case("pow", _op("pow", "Tensor_Scalar"), lambda: (x(3, 4), 3)),
    *case("pow-weight", _op("pow", "Tensor_Tensor"), lambda: (_positive(), w(4))),
    *case("mul", _op("mul", "Tensor"), lambda: (x(3, 4), x(3, 4))),
    *case("mul-itself", _op("mul", "Tensor"), lambda: [x(3, 4)] * 2),
    *case("mul-weight", _op("mul", "Tensor"), lambda: (x(3, 2, 4), w(2, 1))),
    *case("mul-weight-merged", _op("mul", "Tensor"), lambda: (w(4), x(12, 4, outer=2, inner=2))),
    *case("mul-broadcast", _op("mul", "Tensor"), lambda: (x(3, 1), x(3, 4))),
    *case("mul-number", _op("mul", "Scalar"), lambda: (x(3, 4), 2.5)),
    *case("mul-mask", _op("mul", "Tensor"), lambda: (x(3, 4), _mask())),
    *case("div", _op("div", "Tensor"), lambda: (x(3, 4), _positive())),
    *case("div-weight", _op("div", "Tensor"), lambda: (x(3, 4), w(4))),
    *case("where", _op("where", "self"), lambda: (_mask(), x(3, 4), w(4))),
    *case("xlogy", _op("xlogy", "Tensor"), lambda: (x(3, 4), _positive())),
    *case("xlog1py", _op("special_xlog1py"), lambda: (x(3, 4), _positive())),
    *case("polygamma", _op("polygamma"), lambda: (1, _positive())),
    *case("addcmul", _op("addcmul"), lambda: (x(3, 4), x(3, 4), w(4)), value=0.5),
    *case("addcdiv", _op("addcdiv"), lambda: (x(3, 4), w(4), _positive())),
    *case("lerp", _op("lerp", "Scalar"), lambda: (x(3, 4), w(4), 0.3)),
    *case("masked-fill", _op("masked_fill", "Scalar"), lambda: (x(3, 4), _mask(), 0.1)),
    *case("remainder", _op("remainder", "Scalar"), lambda: (x(3, 4), 0.7)),
    *case("fmod", _op("fmod", "Scalar"), lambda: (x(3, 4), 0.7)),
    *case("copysign", _op("copysign", "Scalar"), lambda: (x(3, 4), -1.0)),
    *case("add", _op("add", "Tensor"), lambda: (x(3, 4), x(3, 4)), alpha=0.5),
    *case("add-itself", _op("add", "Tensor"), lambda: [x(3, 4)] * 2),
    *case("add-weight", _op("add", "Tensor"), lambda: (x(3, 2, 4), w(2, 4))),
    *case("sub", _op("sub", "Tensor"), lambda: (x(3, 4), w(4)), alpha=2),
    *case("sub-itself", _op("sub", "Tensor"), lambda: [x(3, 4)] * 2),
    *case("rrelu", aten.rrelu_with_noise.default, lambda: (x(3, 4), _zeros())),
    *case("rsub", _op("rsub", "Tensor"), lambda: (w(4), x(3, 4))),
]


test_rule = check.each_rule(CASES)


def test_samples_in_different_dimensions_are_refused() -> None:
    (one, _) = case("add", _op("add", "Tensor"), lambda: (x(3, 3), x(3, 3, dim=1)))
    check.refused(one, MixesSamples, "samples")


def test_softplus_in_single_precision() -> None:
    z = torch.linspace(-30, 30, 61).reshape(1, -1)
    (one, _) = case("softplus", aten.softplus.default, lambda: (given(z, active=True),))
    built = Built(one)
    assert isinstance(built.rule, activations.Activation) and built.rule.kind is not None
    (m,) = built.rule.diagonal([torch.ones_like(z)], [True])
    assert m is not None
    torch.testing.assert_close(m, built.rule.partial(0).square(), rtol=1e-6, atol=1e-7)
    (low, _) = case("softplus", aten.softplus.default, lambda: (given(z, active=True), 1.0, 2.0))
    (m,) = Built(low).rule.diagonal([torch.ones_like(z)], [True])
    assert m is not None
    torch.testing.assert_close(m, torch.where(z > 2, 1.0, z.sigmoid().square()))


def test_a_fill_by_a_weight_is_left_to_autograd() -> None:
    for one in case("fill", _op("masked_fill", "Tensor"), lambda: (x(3, 4), _mask(), w())):
        built = Built(one, generic=one.alone)
        assert not isinstance(built.rule, elementwise.Elementwise)
