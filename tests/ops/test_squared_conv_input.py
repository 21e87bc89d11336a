"""The fused activation of the squared-kernel convolution; plain values are in test_agreement."""

from __future__ import annotations

import pytest
import torch

from lapkernels.ops import ACTIVATIONS, squared_conv_input, squared_derivative
from tests.ops.cases import FEW, Layer, draw, over
from tests.ops.compare import assert_same, assert_within
from tests.ops.operations import OPERATIONS

(PLAIN,) = [operation for operation in OPERATIONS if operation.name == "squared_conv_input"]
SMOOTH = [activation for activation in ACTIVATIONS if activation != "identity"]


@over(FEW)
@pytest.mark.parametrize("activation", SMOOTH)
@pytest.mark.usefixtures("backend")
def test_fused_activation_is_the_separate_one(
    layer: Layer, activation: str, dtype: torch.dtype
) -> None:
    data = draw(layer, dtype)
    base = (data.m, data.weight, layer.size, layer.geometry)
    found = squared_conv_input(*base, z=data.z, activation=activation, slope=0.3)
    wanted = squared_derivative(PLAIN.run(data), data.z, activation, 0.3)
    ones = torch.ones_like(data.z, dtype=torch.float64)
    factor = squared_derivative(ones, data.z.double(), activation, 0.3)
    # Both take the same steps in another order.
    assert_within(found, wanted, 2 * PLAIN.tolerance(data, dtype) * factor)


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_fused_activation_accumulates(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    out = torch.full_like(data.z, 4.0)
    base = (data.m, data.weight, layer.size, layer.geometry)
    squared_conv_input(*base, z=data.z, activation="relu", out=out, decay=0.5, scale=3.0)
    assert_same(out, 2.0 + 3.0 * PLAIN.brute(data) * (data.z > 0))


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_total_is_kept_by_unit_columns(layer: Layer) -> None:
    """Summed over the input, m_in is m_out times the squared norms of the Jacobian's rows."""
    data = draw(layer, torch.float64, integers=True)
    ones = data.map(torch.ones_like, "m")
    assert_same(PLAIN.run(ones)[0].sum(), PLAIN.brute(ones)[0].sum())
    unit = data.map(lambda w: w.sign(), "weight")
    assert_same(PLAIN.run(unit), PLAIN.brute(unit))
