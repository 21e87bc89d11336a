"""Properties of the linearised predictive variance; its values are checked in test_agreement."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lapkernels.ops import (
    jacobian_gram,
    jacobian_gram_bias,
    jacobian_squared_dot,
    jacobian_squared_dot_bias,
)
from tests.ops.cases import FEW, Layer, draw, over
from tests.ops.compare import assert_same


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_is_the_diagonal_of_the_gram_matrix(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    arguments = (data.s, data.x, data.variance, layer.geometry)
    gram = jacobian_gram(*arguments)
    assert_same(jacobian_squared_dot(*arguments), gram.diagonal(dim1=1, dim2=2))
    bias = (data.s, data.bias_variance, layer.geometry)
    gram = jacobian_gram_bias(*bias)
    assert_same(jacobian_squared_dot_bias(*bias), gram.diagonal(dim1=1, dim2=2))


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_is_linear_in_the_variance(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    other = data.variance.flip(0) + 1
    parts = [
        jacobian_squared_dot(data.s, data.x, variance, layer.geometry)
        for variance in (data.variance, other, data.variance + other)
    ]
    assert_same(parts[2], parts[0] + parts[1])


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_columns_do_not_mix(layer: Layer) -> None:
    data = draw(replace(layer, columns=9), torch.float32, integers=True)
    order = torch.tensor([8, 3, 0, 1, 7, 2, 6, 5, 4])
    arguments = (data.x, data.variance, layer.geometry)
    whole = jacobian_squared_dot(data.s, *arguments)
    assert_same(jacobian_squared_dot(data.s[order], *arguments), whole[:, order])
    assert_same(jacobian_squared_dot(data.s[4:5], *arguments), whole[:, 4:5])
