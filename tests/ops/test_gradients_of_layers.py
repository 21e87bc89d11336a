"""The gradients of a layer in its input and its weight, against autograd and small integers."""

from __future__ import annotations

import pytest
import torch

from lapkernels.ops import Geometry, conv_input, conv_weight
from tests.ops.cases import LAYERS, Layer, draw, over
from tests.ops.compare import assert_same
from tests.ops.oracle import transposed_layer, weight_gradient

CONVOLUTIONS = [
    layer for layer in LAYERS if not layer.is_linear and layer.geometry.padding_mode == "zeros"
]


@over(CONVOLUTIONS)
@pytest.mark.usefixtures("backend")
def test_input(layer: Layer, dtype: torch.dtype) -> None:
    data = draw(layer, dtype, integers=True)
    found = conv_input(data.m, data.weight, layer.size, layer.geometry)
    assert_same(found, transposed_layer(data).to(dtype))


@over(LAYERS)
@pytest.mark.usefixtures("backend")
def test_weight(layer: Layer, dtype: torch.dtype) -> None:
    data = draw(layer, dtype, integers=True)
    found = conv_weight(data.s[0], data.x, layer.geometry)
    assert_same(found, weight_gradient(data).to(dtype))


@pytest.mark.usefixtures("backend")
def test_takes_columns_that_are_views() -> None:
    generator = torch.Generator().manual_seed(0)
    s = torch.randint(-3, 4, (2, 9, 8, 5), generator=generator).double()
    weight = torch.randint(-3, 4, (5, 3, 3, 3), generator=generator).double()
    geometry = Geometry.conv(3, padding=1)
    wanted = conv_input(s.permute(0, 3, 1, 2).contiguous(), weight, (9, 8), geometry)
    assert wanted.abs().sum() > 0
    assert_same(conv_input(s.permute(0, 3, 1, 2), weight, (9, 8), geometry), wanted)
    flipped = weight.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    assert_same(conv_input(s.permute(0, 3, 1, 2), flipped, (9, 8), geometry), wanted)


@pytest.mark.usefixtures("backend")
def test_bad_input_is_refused() -> None:
    s, weight = torch.zeros(2, 4, 6), torch.zeros(4, 3, 3)
    with pytest.raises(ValueError, match="pads with zeros"):
        conv_input(s, weight, (6,), Geometry.conv(3, padding=1, padding_mode="circular", dims=1))
    with pytest.raises(ValueError, match="pads with zeros"):
        conv_input(s, weight, (6,), Geometry())
    with pytest.raises(ValueError, match="6"):
        conv_input(s, weight, (7,), Geometry.conv(3, padding=1, dims=1))
    with pytest.raises(TypeError, match="weight"):
        conv_input(s, weight.double(), (6,), Geometry.conv(3, padding=1, dims=1))
