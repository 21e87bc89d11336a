"""Geometry describes what torch's modules do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lapkernels.ops import Geometry
from lapkernels.ops.base.geometry import channels_first
from tests.ops.cases import LAYERS, Layer, over


@over(LAYERS)
def test_output_size_is_that_of_the_module(layer: Layer) -> None:
    wanted = layer.output_shape(1)
    if layer.is_linear:
        assert layer.geometry.is_linear
        layer.geometry.check_pair(layer.size, tuple(wanted[1:-1]))
    else:
        assert layer.geometry.output_size(layer.size) == wanted[2:]
        layer.geometry.check_pair(layer.size, wanted[2:])


@over([layer for layer in LAYERS if not layer.is_linear])
def test_wrong_pair_is_refused_with_both_sizes(layer: Layer) -> None:
    wrong = tuple(size + 1 for size in layer.output_shape(1)[2:])
    with pytest.raises(ValueError, match=str(wrong[0])):
        layer.geometry.check_pair(layer.size, wrong)


def test_linear_positions_must_be_equal() -> None:
    with pytest.raises(ValueError, match="positions"):
        Geometry().check_pair((3, 4), (4, 3))


def test_integers_stand_for_every_dimension() -> None:
    for dims, kind in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), start=1):
        module = kind(2, 4, 3, stride=2, padding=1, dilation=2, groups=2)
        words = Geometry.conv(3, stride=2, padding=1, dilation=2, groups=2, dims=dims)
        assert Geometry.of(module) == words


def test_geometry_is_a_key() -> None:
    assert len({Geometry.conv(3), Geometry.conv(3), Geometry.conv(3, padding=1)}) == 2


def test_without_padding_keeps_the_rest() -> None:
    geometry = Geometry.conv(3, stride=2, padding=1, padding_mode="circular")
    assert geometry.without_padding() == Geometry.conv(3, stride=2)


def test_channels_first_is_a_view_where_it_can_be() -> None:
    x = torch.randn(2, 3, 4, 5)
    view = channels_first(x, Geometry(), 1)
    assert view.shape == (2, 5, 12)
    assert view.data_ptr() == x.data_ptr()
    assert channels_first(x, Geometry.conv(3), 1) is x
    assert channels_first(x[:, 0, 0], Geometry(), 1).shape == (2, 5, 1)
