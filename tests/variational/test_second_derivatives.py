"""Second derivatives against torch's own and against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradgradcheck

from lapkernels.variational.second_derivatives import lean_second_derivatives


def lean(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: Any) -> Tensor:
        with lean_second_derivatives():
            return function(*args)

    return call


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def normalised(x: Tensor) -> Tensor:
    """Spelled out, as torch's own batch norm is not right in the third derivative."""
    centred = x - x.mean((0, 2), keepdim=True)
    return centred / (centred.square().mean((0, 2), keepdim=True) + 0.1).sqrt()


CONVOLUTIONS = {
    "1d": (F.conv1d, (2, 3, 7), (4, 3, 3), {"stride": 2, "padding": 1}),
    "2d": (F.conv2d, (2, 2, 5, 6), (3, 2, 3, 2), {"padding": (1, 0), "dilation": (1, 2)}),
    "2d-groups": (F.conv2d, (2, 4, 4, 4), (4, 2, 3, 3), {"groups": 2, "stride": (2, 1)}),
    "2d-same": (F.conv2d, (2, 2, 4, 4), (3, 2, 2, 3), {"padding": "same"}),
    "3d": (F.conv3d, (1, 2, 3, 3, 3), (2, 2, 2, 2, 2), {}),
    "transposed-1d": (F.conv_transpose1d, (2, 3, 4), (3, 2, 3), {"stride": 2}),
    "transposed-2d": (
        F.conv_transpose2d,
        (2, 4, 3, 3),
        (4, 2, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": 2},
    ),
    "transposed-3d": (F.conv_transpose3d, (1, 2, 2, 2, 2), (2, 1, 2, 2, 2), {}),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, bias: bool) -> None:
    function, x, weight, options = CONVOLUTIONS[name]
    torch.manual_seed(0)
    outputs = weight[1] * options.get("groups", 1) if "transposed" in name else weight[0]
    inputs = (random(*x), random(*weight), *([random(outputs)] if bias else []))
    call = lean(lambda x, w, b=None: function(x, w, b, **options))
    torch.testing.assert_close(call(*inputs), function(*inputs, **options))
    assert gradgradcheck(call, inputs)


def test_unbatched_input() -> None:
    assert gradgradcheck(lean(F.conv1d), (random(3, 7), random(4, 3, 3)))


@pytest.mark.parametrize("wanted", ["x", "weight", "bias"])
def test_a_gradient_of_one_input_alone(wanted: str) -> None:
    """Cotangents that do not exist are left out, not taken for zeros of a wrong shape."""
    inputs = {"x": random(2, 3, 6), "weight": random(4, 3, 3), "bias": random(4)}

    def second(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        value = call(inputs["x"], inputs["weight"], inputs["bias"]).tanh().sum()
        (gradient,) = torch.autograd.grad(value, inputs[wanted], create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), list(inputs.values()))

    for found, expected in zip(second(lean(F.conv1d)), second(F.conv1d), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (3, 2, 2, 3)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(shape: tuple[int, ...], affine: bool) -> None:
    scale = (random(shape[1]), random(shape[1])) if affine else ()

    def call(x: Tensor, *scale: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, *scale, training=True, eps=0.1)

    inputs = (random(*shape), *scale)
    torch.testing.assert_close(lean(call)(*inputs), call(*inputs))
    assert gradgradcheck(lean(call), inputs)


@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (0.5, 20.0), (2.0, 1.0)])
def test_softplus(beta: float, threshold: float) -> None:
    """With one entry far in the part that torch takes for linear."""
    z = torch.cat([torch.randn(6).double(), torch.tensor([41.0]).double()]).requires_grad_()

    def call(z: Tensor) -> Tensor:
        return F.softplus(z, beta, threshold)

    assert torch.equal(lean(call)(z), call(z))
    values = [
        torch.autograd.grad(f(z).pow(3).sum(), z, create_graph=True)[0] for f in (lean(call), call)
    ]
    torch.testing.assert_close(*values, rtol=1e-14, atol=0)
    second = [torch.autograd.grad(v.pow(2).sum(), z, create_graph=True)[0] for v in values]
    torch.testing.assert_close(*second, rtol=1e-13, atol=0)
    third = [torch.autograd.grad(v.pow(2).sum(), z)[0] for v in second]
    torch.testing.assert_close(*third, rtol=1e-12, atol=0)


@pytest.mark.parametrize("also", ["nothing", "use", "change"])
@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (2.0, 1.0)])
def test_softplus_behind_a_norm(beta: float, threshold: float, also: str) -> None:
    """One function for the two; the norm's output may go elsewhere, or be changed in place."""
    inputs = (random(3, 2, 4), random(2), random(2))

    def call(x: Tensor, weight: Tensor, bias: Tensor, spelled_out: bool = False) -> Tensor:
        if spelled_out:
            y = normalised(x) * weight[:, None] + bias[:, None]
        else:
            y = F.batch_norm(x, None, None, weight, bias, training=True, eps=0.1)
        if also == "change":
            y *= x
        return F.softplus(y, beta, threshold) + (y.sin() if also == "use" else 0)

    def derivatives(value: Tensor) -> list[Tensor]:
        value, found = value.pow(3).sum(), []
        for _ in range(3):
            gradients = torch.autograd.grad(value, inputs, create_graph=True)
            value = torch.stack([g.pow(3).sum() for g in gradients]).sum()
            found += gradients
        return found

    found, expected = derivatives(lean(call)(*inputs)), derivatives(call(*inputs, True))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_batch_norm_updates_its_statistics_once() -> None:
    x = random(5, 3, 2)
    found, expected = ((torch.zeros(3).double(), torch.ones(3).double()) for _ in range(2))
    lean(F.batch_norm)(x, *found, None, None, True)
    F.batch_norm(x, *expected, training=True)
    torch.testing.assert_close(found, expected)


def test_batch_norm_in_evaluation_is_torchs_own() -> None:
    mean, var = torch.randn(3).double(), torch.rand(3).double() + 0.5
    assert gradgradcheck(
        lean(lambda x, w: F.batch_norm(x, mean, var, w)), (random(4, 3), random(3))
    )


@pytest.mark.parametrize("name", ["convolution", "batch norm"])
def test_third_derivatives(name: str) -> None:
    inputs = (random(3, 2, 4), random(2, 2, 2) if name == "convolution" else random(2))

    def norm(x: Tensor, w: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, w, training=True, eps=0.1)

    def spelled_out(x: Tensor, w: Tensor) -> Tensor:
        return normalised(x) * w[:, None]

    def third(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        value = call(*inputs).pow(3).sum()
        for _ in range(2):
            gradients = torch.autograd.grad(value, inputs, create_graph=True)
            value = torch.stack([g.pow(3).sum() for g in gradients]).sum()
        return torch.autograd.grad(value, inputs)

    call, truth = (F.conv1d, F.conv1d) if name == "convolution" else (norm, spelled_out)
    for found, expected in zip(third(lean(call)), third(truth), strict=True):
        torch.testing.assert_close(found, expected)
