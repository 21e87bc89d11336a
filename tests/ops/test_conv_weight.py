"""The gradient of a layer's weight, against the sum of its Jacobian columns."""

from __future__ import annotations

import pytest
import torch

from lapkernels.ops import conv_weight
from tests.ops import oracle
from tests.ops.cases import LAYERS, Layer, draw, over
from tests.ops.compare import assert_same


@over(LAYERS)
@pytest.mark.usefixtures("backend")
def test_equals_autograd(layer: Layer, dtype: torch.dtype) -> None:
    data = draw(layer, dtype, integers=True)
    found = conv_weight(data.s[0], data.x, layer.geometry)
    assert_same(found, oracle.weight_gradient(data).to(dtype))
