"""The registration of every op with torch, and the compiled library behind it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from lapkernels import ops
from lapkernels.kernels import NATIVE
from lapkernels.kernels.native import native_op
from lapkernels.ops import OPS, Geometry
from lapkernels.ops.base.registration import ListUpdate, Op
from tests.ops.cases import FEW, Data, draw

MUST_BE_BUILT = any(
    os.environ.get(name, "0").lower() not in ("", "0", "false")
    for name in ("CI", "LAPKERNELS_REQUIRE_EXTENSION")
)


def test_library_is_built_where_it_must_be() -> None:
    """Elsewhere its tests are skipped; here that would hide all of them."""
    assert NATIVE.path is not None or not MUST_BE_BUILT, NATIVE.reason


@pytest.mark.skipif(NATIVE.path is None, reason=f"no compiled library: {NATIVE.reason}")
@pytest.mark.parametrize("name", OPS)
def test_library_has_every_op(name: str) -> None:
    kernel: Any = native_op(name)
    assert kernel is not None
    form = name if isinstance(OPS[name], ListUpdate) else f"{name}_"
    public = getattr(torch.ops.lapkernels, form).default._schema

    def described(schema: Any) -> list[tuple[str, str]]:
        return [(argument.name, str(argument.type)) for argument in schema.arguments]

    assert described(kernel._schema) == described(public)


def _numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).abs() + 0.1


_TAPS = ([3], [2], [1], [2], 2)  # kernel size, stride, padding, dilation, groups
_SMALL, _LARGE = _numbers(2, 3, 4, 5), _numbers(1, 3, 6, 11)
_WEIGHT = _numbers(4, 3, 3)
_LISTS = [[_numbers(3, 2), _numbers(5)] for _ in range(3)]

# Arguments of `lapkernels::name`.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "jacobian_squared_sum": (_SMALL, _LARGE, *_TAPS),
    "jacobian_squared_dot": (_SMALL, _LARGE, _WEIGHT, *_TAPS),
    "jacobian_gram": (_SMALL, _LARGE, _WEIGHT, *_TAPS),
    "squared_conv_weight": (_SMALL[:1], _LARGE, *_TAPS, False),
    "squared_conv_input": (
        _SMALL[0], _WEIGHT, [11], *_TAPS[1:], False, _LARGE[0], "tanh", 0.0,
    ),
    "conv_input": (_SMALL[0], _WEIGHT, [11], *_TAPS[1:], False),
    "conv_weight": (_SMALL[:1], _LARGE, *_TAPS),
    "layer_chain": (
        [torch.zeros(4, 6), torch.zeros(4), torch.zeros(3, 6)], _numbers(3, 4), None,
        [_numbers(4, 6), _numbers(3, 6), _numbers(3, 6)], [2, 1, 1, 1, 0], [0.0],
    ),
    "kronecker_input": (_LARGE[0], [5], *_TAPS, False, False, True),
    "kronecker_output": (_SMALL, 2, True),
    "window_squared_sum": (
        _numbers(2, 4, 5, 7), _numbers(1, 6, 9, 7), [3], [2], [1], [1], 2,
    ),
    "window_pull": (
        _numbers(2, 4, 5, 7), _WEIGHT, [9], [2], [1], [1], 2, False, _numbers(6, 9, 7),
    ),
    "sparse_squared_sum": (_SMALL, _LARGE, *_TAPS[:4], 1),
    "sparse_conv_input": (_SMALL, _WEIGHT, [11], *_TAPS[1:4]),
    "squared_derivative": (_numbers(3, 4), _numbers(4, 3).T, "gelu", 0.0),
    "scaled_product": (_numbers(3, 4), _numbers(2, 4), _numbers(4, 5)),
    "gaussian_kl": (_LISTS[0], _LISTS[1], 0.5),
    "squared_gradient_sum": (_LISTS[0], _LISTS[1]),
    "precision_update": (_LISTS[0], _LISTS[1], 0.9, 2.0),
    "sample_from_precision": (_LISTS[0], _LISTS[1], _LISTS[2], 0.5, 2.0),
}  # fmt: skip


def _fresh(value: Any, grad: bool) -> Any:
    if isinstance(value, Tensor):
        return value.clone().requires_grad_(grad)
    if isinstance(value, list) and value and isinstance(value[0], Tensor):
        return [_fresh(entry, grad) for entry in value]
    return value


def test_every_op_has_arguments() -> None:
    assert set(ARGUMENTS) == set(OPS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_opcheck(name: str, backend: str) -> None:
    # Registration of the gradient is the same for all backends, and slow to check.
    grad = backend == "reference" and isinstance(OPS[name], Op)
    arguments = tuple(_fresh(value, grad) for value in ARGUMENTS[name])
    torch.library.opcheck(getattr(torch.ops.lapkernels, name).default, arguments)


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if isinstance(op, Op)])
@pytest.mark.usefixtures("backend")
def test_opcheck_of_the_accumulating_form(name: str) -> None:
    arguments = tuple(_fresh(value, False) for value in ARGUMENTS[name])
    out = torch.ones_like(getattr(torch.ops.lapkernels, name)(*arguments))
    form = getattr(torch.ops.lapkernels, f"{name}_").default
    torch.library.opcheck(form, (out, 0.5, 2.0, *arguments))


def _all_ops(data: Data, geometry: Geometry, total: Tensor) -> list[Tensor]:
    weight = ops.jacobian_squared_sum(data.s, data.x, geometry, out=total, decay=0.5)
    m = ops.squared_conv_input(
        data.m, data.weight, data.layer.size, geometry, z=data.z, activation="tanh"
    )
    return [
        weight + 1,
        m,
        ops.squared_conv_weight(data.m, data.x, geometry),
        ops.jacobian_squared_dot(data.s, data.x, data.variance, geometry),
        ops.jacobian_gram(data.s, data.x, data.variance, geometry),
        ops.kronecker_input(data.x, geometry, bias=True),
        ops.kronecker_output(data.s, geometry),
        ops.squared_derivative(m, data.z, "relu"),
        ops.gaussian_kl([data.weight], [data.weight], 0.5),
        ops.squared_gradient_sum([data.weight], [data.weight]),
    ]


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@pytest.mark.usefixtures("backend")
def test_compile_in_one_graph(compiler: str) -> None:
    data = draw(FEW[3], torch.float32)
    geometry = FEW[3].geometry
    wanted = _all_ops(data, geometry, torch.ones_like(data.weight))
    torch.compiler.reset()
    run = torch.compile(_all_ops, fullgraph=True, backend=compiler)
    found = run(data, geometry, torch.ones_like(data.weight))
    for value, expected in zip(found, wanted, strict=True):
        assert expected.any()
        torch.testing.assert_close(value, expected)


@pytest.mark.usefixtures("backend")
def test_autocast_rounds_nothing() -> None:
    data = draw(FEW[3], torch.float32)
    wanted = _all_ops(data, FEW[3].geometry, torch.ones_like(data.weight))
    with torch.autocast("cpu", torch.bfloat16):
        found = _all_ops(data, FEW[3].geometry, torch.ones_like(data.weight))
    for value, expected in zip(found, wanted, strict=True):
        assert torch.equal(value, expected)


class Curved(torch.nn.Module):
    """A layer whose output is regularised by an op of ours, as a model to be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).tanh().to(x.dtype)
        diagonal = ops.jacobian_squared_sum(y.unsqueeze(0), x, Geometry())
        return y.sum() + diagonal.log1p().sum()


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.usefixtures("backend")
def test_compiled_model_has_no_graph_break(compiler: str) -> None:
    model, x = Curved(), _numbers(5, 3)
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(model(x), parameters)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=compiler)
    for value, expected in zip(torch.autograd.grad(compiled(x), parameters), wanted, strict=True):
        torch.testing.assert_close(value, expected)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), model(x))
    if compiler == "aot_eager":  # inductor rounds less often than autocast does
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(compiled(x), model(x))
