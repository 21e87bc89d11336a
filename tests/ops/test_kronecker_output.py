"""Properties of the output's Kronecker factor; its values are checked in test_agreement."""

from __future__ import annotations

import pytest
import torch

from lapkernels.ops import jacobian_squared_sum_bias, kronecker_output
from tests.ops.cases import FEW, LAYERS, Layer, draw, over
from tests.ops.compare import assert_same


@over(FEW)
@pytest.mark.usefixtures("cpp")
def test_is_symmetric_to_the_bit(layer: Layer, dtype: torch.dtype) -> None:
    """The kernels compute one half and mirror it."""
    data = draw(layer, dtype)
    for reduce in (False, True):
        factor = kronecker_output(data.s, layer.geometry, reduce=reduce)
        assert factor.shape[0] == layer.groups
        assert_same(factor, factor.mT)


@over(LAYERS)
@pytest.mark.usefixtures("backend")
def test_diagonal_of_the_reduced_factor_is_the_bias(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    factor = kronecker_output(data.s, layer.geometry, reduce=True)
    wanted = jacobian_squared_sum_bias(data.s, layer.geometry)
    assert_same(factor.diagonal(dim1=1, dim2=2).flatten(), wanted)


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_columns_and_samples_are_alike(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    swapped = kronecker_output(data.s.transpose(0, 1), layer.geometry)
    assert_same(swapped, kronecker_output(data.s, layer.geometry))
