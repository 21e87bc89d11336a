"""m times the squared derivative of an activation, against autograd of torch's own functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops import ACTIVATIONS, squared_conv_input, squared_derivative
from tests.ops.cases import FEW, Layer, draw, over
from tests.ops.compare import assert_same, assert_within
from tests.ops.layouts import BUFFERS, LAYOUTS
from tests.ops.operations import OPERATIONS

SLOPE = 0.3
(PLAIN,) = [operation for operation in OPERATIONS if operation.name == "squared_conv_input"]
# A derivative takes an exponential or two, some products, and a difference from one.
ROUNDINGS = 16

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda z: z,
    "given": lambda z: z.square() / 2,
    "relu": F.relu,
    "leaky_relu": lambda z: F.leaky_relu(z, SLOPE),
    "elu": lambda z: F.elu(z, SLOPE),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": lambda z: F.softplus(z, SLOPE, threshold=1e9),
    "silu": F.silu,
    "gelu": F.gelu,
    # Functions whose derivative at y is that of the activation with the result y.
    "tanh_of_result": lambda y: y - y.pow(3) / 3,
    "sigmoid_of_result": lambda y: y.square() / 2 - y.pow(3) / 3,
}


def _derivative(z: Tensor, activation: str) -> Tensor:
    entry = z.double().clone().requires_grad_()
    (found,) = torch.autograd.grad(FUNCTIONS[activation](entry).sum(), entry)
    return found


def _check(found: Tensor, m: Tensor, z: Tensor, activation: str) -> None:
    slope = _derivative(z, activation)
    # phi' is a difference of numbers up to one, hence the one in its magnitude.
    magnitude = m.double().abs() * (1 + slope.abs()).square()
    wanted = m.double() * slope.square()
    assert_within(found, wanted, ROUNDINGS * torch.finfo(m.dtype).eps * magnitude)


def test_every_activation_is_tested() -> None:
    assert set(FUNCTIONS) == set(ACTIVATIONS)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 7, 9), (4099,)])
@pytest.mark.usefixtures("every_backend")
def test_equals_brute_force(activation: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    m, z = (torch.randn(shape, dtype=dtype, generator=generator) for _ in range(2))
    z = z.abs() if shape == (1,) else 2 * z
    _check(squared_derivative(m, z, activation, SLOPE), m, z, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.usefixtures("every_backend")
def test_far_out_and_at_the_kink(activation: str, dtype: torch.dtype) -> None:
    z = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 20, -20, 90, -90, 700, -700, 1, -1], dtype=dtype)
    m = torch.linspace(1, 2, len(z), dtype=dtype)
    found = squared_derivative(m, z, activation, SLOPE)
    assert found.isfinite().all()
    _check(found, m, z, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("every_backend")
def test_layout(activation: str, layout: str) -> None:
    m, z = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 5, 7)
    _check(squared_derivative(LAYOUTS[layout](m), z, activation, SLOPE), m, z, activation)
    _check(squared_derivative(m, LAYOUTS[layout](z), activation, SLOPE), m, z, activation)


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.usefixtures("every_backend")
def test_out(buffer: str) -> None:
    m, z = torch.randn(3, 17), torch.randn(3, 17)
    target = BUFFERS[buffer](m)
    target.view.fill_(float("nan"))
    squared_derivative(m, z, "tanh", out=target.view, decay=0.0)
    _check(target.view.clone(), m, z, "tanh")
    squared_derivative(m, z, "tanh", out=target.view, decay=2.0, scale=-1.0)
    _check(target.view.clone(), m, z, "tanh")
    target.assert_untouched_outside()
    with pytest.raises(ValueError, match=r"\bout\b"):
        squared_derivative(m, z, "tanh", out=torch.zeros(3, 16))


@pytest.mark.usefixtures("every_backend")
def test_nothing_and_nan() -> None:
    assert squared_derivative(torch.ones(0, 3), torch.ones(0, 3), "tanh").shape == (0, 3)
    z = torch.tensor([1.0, float("nan"), 1.0])
    # Those that ask for the sign of z alone need not see it.
    for activation in sorted({*ACTIVATIONS} - {"identity", "relu", "leaky_relu", "elu"}):
        found = squared_derivative(torch.ones(3), z, activation, SLOPE)
        assert found.isnan().tolist() == [False, True, False], activation


@over(FEW)
@pytest.mark.parametrize("activation", [one for one in ACTIVATIONS if one != "identity"])
@pytest.mark.usefixtures("backend")
def test_fused_activation_is_the_separate_one(
    layer: Layer, activation: str, dtype: torch.dtype
) -> None:
    data = draw(layer, dtype)
    base = (data.m, data.weight, layer.size, layer.geometry)
    found = squared_conv_input(*base, z=data.z, activation=activation, slope=0.3)
    wanted = squared_derivative(PLAIN.run(data), data.z, activation, 0.3)
    ones = torch.ones_like(data.z, dtype=torch.float64)
    factor = squared_derivative(ones, data.z.double(), activation, 0.3)
    # Both take the same steps in another order.
    assert_within(found, wanted, 2 * PLAIN.tolerance(data, dtype) * factor)


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_fused_activation_accumulates(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    out = torch.full_like(data.z, 4.0)
    base = (data.m, data.weight, layer.size, layer.geometry)
    squared_conv_input(*base, z=data.z, activation="relu", out=out, decay=0.5, scale=3.0)
    assert_same(out, 2.0 + 3.0 * PLAIN.brute(data) * (data.z > 0))
