"""Properties of the squared-kernel convolution onto weights; values are in test_agreement."""

from __future__ import annotations

import pytest
import torch

from lapkernels.ops import (
    jacobian_squared_sum,
    squared_conv_bias,
    squared_conv_input,
    squared_conv_weight,
)
from tests.ops.cases import FEW, LAYERS, Layer, draw, over
from tests.ops.compare import assert_same


@over([layer for layer in LAYERS if layer.geometry.padding_mode == "zeros"])
@pytest.mark.usefixtures("backend")
def test_is_the_dual_of_the_input_op_on_squares(layer: Layer) -> None:
    """sum_p W² D(m, x) = sum_u x² m_in(m, W), both being sum of m W² X² where no taps meet."""
    data = draw(layer, torch.float64, integers=True)
    weight = squared_conv_weight(data.m, data.x, layer.geometry)
    entry = squared_conv_input(data.m, data.weight, layer.size, layer.geometry)
    assert_same((weight * data.weight**2).sum(), (entry * data.x**2).sum())


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_equals_columns_that_are_one_output_each(layer: Layer) -> None:
    """A diagonal M has the columns sqrt(m) e_o e_t, one for each output."""
    data = draw(layer, torch.float32, integers=True).samples(slice(0, 1))
    m = data.m.abs() * data.m.abs()
    roots = torch.diag(data.m.abs().flatten()).reshape(-1, *data.m.shape)
    found = squared_conv_weight(m, data.x, layer.geometry)
    assert_same(found, jacobian_squared_sum(roots, data.x, layer.geometry))


@over(FEW)
def test_bias_is_the_weight_of_a_constant_input(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    dim = data.m.dim() - 1 if layer.is_linear else 1
    others = [d for d in range(data.m.dim()) if d != dim]
    assert_same(squared_conv_bias(data.m, layer.geometry), data.m.sum(others))
