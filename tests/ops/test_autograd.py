"""Gradients of the ops on a layer, against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lapkernels import ops
from tests.ops.cases import Layer, draw, over
from tests.ops.operations import OPERATIONS, Operation, each

LAYERS = [
    Layer("linear", (3, 2), (2,), 2, 2),
    Layer("conv1d", (2, 4), (5,), 2, 2, (("kernel_size", 3), ("stride", 2), ("groups", 2))),
    Layer("conv2d", (2, 2), (3, 4), 2, 1, (("kernel_size", 2), ("padding", 1), ("dilation", 2))),
    Layer("conv2d", (1, 2), (3, 3), 1, 3, (("kernel_size", 3), ("padding", "same"))),
    Layer(
        "conv2d", (1, 2), (3, 3), 2, 1,
        (("kernel_size", 2), ("padding", 1), ("padding_mode", "circular")),
    ),
    Layer(
        "conv_transpose2d", (2, 1), (2, 2), 2, 2,
        (("kernel_size", 2), ("stride", 2), ("output_padding", 1)),
    ),
]  # fmt: skip


@each(OPERATIONS)
@over(LAYERS)
@pytest.mark.usefixtures("backend")
def test_gradient(operation: Operation, layer: Layer) -> None:
    data = draw(layer)
    inputs = [getattr(data, name).clone().requires_grad_() for name in operation.reads]
    assert operation.run(data).requires_grad is False
    assert gradcheck(_function(operation, layer), inputs)


@each(OPERATIONS)
@over(LAYERS[2:4])
@pytest.mark.usefixtures("backend")
def test_gradient_of_one_input(operation: Operation, layer: Layer) -> None:
    """Where the other inputs ask for none."""
    data = draw(layer)
    for chosen in operation.reads:
        inputs = [
            getattr(data, name).clone().requires_grad_(name == chosen) for name in operation.reads
        ]
        assert gradcheck(_function(operation, layer), inputs)


@each(OPERATIONS)
@over([LAYERS[0], LAYERS[4], LAYERS[5]])
@pytest.mark.usefixtures("kernel")
def test_second_gradient(operation: Operation, layer: Layer) -> None:
    data = draw(layer)
    inputs = [getattr(data, name).clone().requires_grad_() for name in operation.reads]
    assert gradgradcheck(_function(operation, layer), inputs)


@each(OPERATIONS)
@over([LAYERS[0], LAYERS[4], LAYERS[5]])
@pytest.mark.usefixtures("backend")
def test_function_transforms(operation: Operation, layer: Layer) -> None:
    """Forward mode, torch.func and vmap: none may lose a tangent."""
    run = _function(operation, layer)
    inputs = tuple(getattr(draw(layer), name) for name in operation.reads)
    tangents = tuple(entry.cos() for entry in inputs)
    tracked = tuple(entry.clone().requires_grad_() for entry in inputs)
    gradients = torch.autograd.grad(run(*tracked).sum(), tracked)
    slope = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
    assert slope

    torch.testing.assert_close(torch.func.jvp(run, inputs, tangents)[1].sum(), slope)
    which = tuple(range(len(inputs)))
    found = torch.func.grad(lambda *entries: run(*entries).sum(), which)(*inputs)
    torch.testing.assert_close(found, gradients)
    stacked = tuple(
        torch.stack([entry, tangent]) for entry, tangent in zip(inputs, tangents, strict=True)
    )
    wanted = torch.stack([run(*inputs), run(*tangents)])
    torch.testing.assert_close(torch.vmap(run)(*stacked), wanted)


@each([operation for operation in OPERATIONS if operation.has_out])
@over(LAYERS[:2])
@pytest.mark.usefixtures("backend")
def test_gradient_through_out_is_refused_or_right(operation: Operation, layer: Layer) -> None:
    """A buffer that loses its history would give a gradient that is silently incomplete."""
    data = draw(layer)
    name = operation.reads[0]
    tracked = data.map(lambda t: t.clone().requires_grad_(), name)
    wanted = torch.autograd.grad(operation.run(tracked).sum(), getattr(tracked, name))[0]
    out = torch.zeros_like(operation.run(data))
    try:
        result = operation.run(tracked, out=out)
        (found,) = torch.autograd.grad(result.sum(), getattr(tracked, name))
    except RuntimeError:
        return
    torch.testing.assert_close(found, wanted)


def _function(operation: Operation, layer: Layer) -> Callable[..., Tensor]:
    data = draw(layer)

    def run(*inputs: Tensor) -> Tensor:
        given: dict[str, Any] = dict(zip(operation.reads, inputs, strict=True))
        return operation.run(type(data)(**{**vars(data), **given}))

    return run


@pytest.mark.parametrize("activation", [a for a in ops.ACTIVATIONS if "relu" not in a])
@pytest.mark.usefixtures("backend")
def test_gradient_of_a_smooth_activation(activation: str) -> None:
    m, z = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert gradcheck(lambda m, z: ops.squared_derivative(m, z, activation, 0.7), (m, z))
