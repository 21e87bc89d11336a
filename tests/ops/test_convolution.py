"""Layers by our kernels are torch's own, with their gradients."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lapkernels import use_backend
from lapkernels.ops import convolution
from lapkernels.ops.convolution import our_shape
from tests.ops.cases import LAYERS, Data, Layer, draw, over
from tests.ops.compare import assert_same

CONVOLUTIONS = [
    layer for layer in LAYERS if not layer.is_linear and layer.geometry.padding_mode == "zeros"
]


def taps(layer: Layer) -> tuple[Any, ...] | None:
    """The options of ``torch.convolution``; None if the padding is not the same on both sides."""
    geometry = layer.geometry
    if any(before != after for before, after in geometry.padding):
        return None
    stride, padding, dilation, groups = geometry.arguments
    extra = list(geometry.output_padding)
    return stride, padding, dilation, geometry.transposed, extra, groups


def arguments(data: Data) -> tuple[Tensor, Tensor, Tensor]:
    bias = torch.arange(data.m.shape[1]).to(data.x.dtype) - 1
    return data.x, data.weight, bias


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels serve layers of any size."""
    monkeypatch.setattr(sys.modules["lapkernels.ops.convolution"], "LEAST", 1)


@over([layer for layer in CONVOLUTIONS if taps(layer)])
@pytest.mark.usefixtures("backend", "small")
def test_equals_torch(layer: Layer, dtype: torch.dtype) -> None:
    data = draw(layer, dtype, integers=True)
    options = taps(layer)
    assert options is not None
    x, weight, bias = leaves = [t.clone().requires_grad_() for t in arguments(data)]
    found = convolution(x, weight, bias, *options)
    wanted = torch.convolution(x, weight, bias, *options)
    assert_same(found.detach(), wanted.detach())
    if found.numel():
        pairs = zip(
            torch.autograd.grad(found, leaves, data.m),
            torch.autograd.grad(wanted, leaves, data.m),
            strict=True,
        )
        for mine, torchs in pairs:
            assert_same(mine, torchs)


def _draw(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_gradients(transposed: bool) -> None:
    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return convolution(x, weight, bias, [2], [1], [1], transposed, [0], 1)

    channels = (3, 2) if transposed else (2, 3)
    leaves = (_draw(0, 2, channels[0], 6), _draw(1, 3, 2, 3), _draw(2, channels[1]))
    assert gradcheck(layer, leaves)
    assert gradgradcheck(layer, leaves)


@pytest.mark.usefixtures("small")
def test_kernels_serve_few_channels_only() -> None:
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    x, weight = torch.rand(2, 3, 8, 9), torch.rand(4, 3, 3, 3)
    assert our_shape(x, weight, torch.zeros(4), *options) == [2, 4, 8, 9]
    assert our_shape(x, weight, torch.zeros(3), *options) is None
    strided = torch.rand(8)[::2]
    assert our_shape(x, weight, strided, *options) is None
    known = torch.convolution(x, weight, strided, *options)
    assert torch.equal(convolution(x, weight, strided, *options), known)
    many = torch.zeros(2, 32, 8, 8), torch.zeros(32, 32, 3, 3)
    assert our_shape(*many, None, *options) is None
    with use_backend("cpp"):
        for one, other in ((x.half(), weight.half()), (x[:0], weight)):
            known = torch.convolution(one, other, None, *options)
            assert torch.equal(convolution(one, other, None, *options), known)
    with use_backend("reference"):
        known = torch.convolution(x, weight, None, *options)
        assert torch.equal(convolution(x, weight, None, *options), known)


def test_kernels_serve_what_is_large_enough() -> None:
    weight, options = torch.zeros(4, 3, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert our_shape(torch.zeros(1, 3, 50, 50), weight, None, *options) is not None
    assert our_shape(torch.zeros(1, 3, 49, 49), weight, None, *options) is None


@pytest.mark.usefixtures("small")
def test_what_torch_refuses_is_refused() -> None:
    options = ([1], [0], [1], False, [0], 1)
    x, weight = torch.zeros(2, 3, 8), torch.zeros(4, 3, 3)
    for wrong in (
        (x[:, :2], weight, None),
        (x, weight, torch.zeros(3)),
        (x, weight.double(), None),
        (x[..., :2], weight, None),
    ):
        with pytest.raises(RuntimeError):
            convolution(*wrong, *options)
