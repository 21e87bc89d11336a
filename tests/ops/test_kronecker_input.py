"""Properties of the input's Kronecker factor; its values are checked in test_agreement."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

from lapkernels.ops import jacobian_squared_sum, kronecker_input, kronecker_output
from tests.ops import oracle
from tests.ops.cases import FEW, LAYERS, Layer, draw, over
from tests.ops.compare import assert_same


@over([layer for layer in LAYERS if layer.groups == 1 and layer.positions < 1000])
@pytest.mark.usefixtures("backend")
def test_gives_the_second_moments_of_the_output(layer: Layer) -> None:
    """sum_t y yᵀ = W A Wᵀ for what the real module makes of x."""
    data = draw(layer, integers=True)
    bias = torch.arange(layer.channels[1], dtype=torch.float64)
    module = layer.module()
    output = functional_call(module, {"weight": data.weight, "bias": bias}, (data.x,))
    rows = oracle.per_position(output, layer).squeeze(1)
    weight = data.weight.transpose(0, 1) if layer.is_transposed else data.weight
    weight = torch.cat([weight.flatten(1), bias[:, None]], 1)
    factor = kronecker_input(data.x, layer.geometry, bias=True)[0]
    assert_same(weight @ factor @ weight.T, (rows @ rows.mT).sum(0))


@over(FEW)
@pytest.mark.usefixtures("cpp")
def test_is_symmetric_to_the_bit(layer: Layer, dtype: torch.dtype) -> None:
    """The kernels compute one half and mirror it."""
    data = draw(layer, dtype)
    for reduce in (False, True):
        for bias in (False, True):
            factor = kronecker_input(data.x, layer.geometry, reduce=reduce, bias=bias)
            assert factor.shape[0] == layer.groups
            assert_same(factor, factor.mT)


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_ones_are_appended_last(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    plain = kronecker_input(data.x, layer.geometry)
    extended = kronecker_input(data.x, layer.geometry, bias=True)
    assert_same(extended[:, :-1, :-1], plain)
    positions = data.m[:, :1].numel() if not layer.is_linear else data.m[..., :1].numel()
    assert (extended[:, -1, -1] == positions).all()


@over(
    [
        layer
        for layer in LAYERS
        if layer.groups == 1 and layer.positions == 1 and not layer.is_transposed
    ]
)
@pytest.mark.usefixtures("backend")
def test_product_of_factors_is_exact_at_one_position(layer: Layer) -> None:
    """One sample, one column, one position: the diagonal of A ⊗ B is that of the layer's GGN."""
    data = draw(replace(layer, samples=1, columns=1), torch.float32, integers=True)
    a = kronecker_input(data.x, layer.geometry)[0].diagonal()
    b = kronecker_output(data.s, layer.geometry)[0].diagonal()
    wanted = jacobian_squared_sum(data.s, data.x, layer.geometry)
    assert_same(torch.outer(b, a).reshape(wanted.shape), wanted)
