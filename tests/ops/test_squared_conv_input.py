"""The fused activation of the squared-kernel convolution; plain values are in test_agreement."""

from __future__ import annotations

import pytest
import torch

from lapkernels.ops import ACTIVATIONS, squared_conv_input, squared_derivative
from tests.ops.cases import FEW, Layer, draw, layer_of, over
from tests.ops.compare import assert_same, assert_within
from tests.ops.operations import OPERATIONS

(PLAIN,) = [operation for operation in OPERATIONS if operation.name == "squared_conv_input"]
SMOOTH = [activation for activation in ACTIVATIONS if activation != "identity"]

# Of many channels vectors run along them.
MANY_CHANNELS = [
    layer_of("conv2d", 64, 9, 6, 6, n=3, kernel_size=3, padding=1),  # rows of taps beside the image
    layer_of(
        "conv2d", 100, 40, 7, 5, n=2, kernel_size=3
    ),  # more inputs than outputs, blocks of taps
    layer_of("conv2d", 66, 5, 20, 17, n=2, kernel_size=3, padding=1),  # several slabs of a sample
    layer_of("conv2d", 130, 34, 9, 7, kernel_size=3, stride=2, padding=1, groups=2),
    layer_of("conv2d", 64, 4, 5, 9, kernel_size=2, stride=3),  # phases that no tap reaches
    layer_of("conv1d", 70, 6, 90, kernel_size=5, dilation=2, padding=4),
    layer_of("conv3d", 64, 6, 3, 4, 5, kernel_size=(2, 3, 3), padding=1),
    layer_of("conv_transpose2d", 65, 8, 6, 5, kernel_size=3, stride=2, padding=1),
    # One vector of AVX-512, whose taps share what they broadcast.
    layer_of("conv2d", 16, 24, 40, 53, kernel_size=3, padding=1),
    layer_of("conv2d", 15, 30, 7, 6, n=2, kernel_size=3, padding=1),  # one row of taps at a time
    layer_of("conv2d", 80, 30, 9, 25, kernel_size=3, padding=1),  # behind a panel of four
    layer_of("conv2d", 16, 130, 22, 19, kernel_size=3, padding=(1, 2)),  # sources in parts
    layer_of("conv3d", 16, 20, 9, 8, 10, n=1, kernel_size=3, padding=1),
    layer_of("conv_transpose2d", 20, 16, 30, 11, kernel_size=3, padding=1),
    layer_of("conv2d", 16, 20, 12, 31, kernel_size=(3, 5), padding=2),
]


@over(MANY_CHANNELS)
@pytest.mark.usefixtures("cpp")
def test_many_channels(layer: Layer, dtype: torch.dtype) -> None:
    exact, random = draw(layer, dtype, integers=True), draw(layer, dtype)
    assert_same(PLAIN.run(exact), PLAIN.brute(exact))
    once = PLAIN.run(random)
    assert_within(once, PLAIN.brute(random), PLAIN.tolerance(random, dtype))
    assert_same(PLAIN.run(random, out=once.clone(), decay=2.0, scale=0.5), 2.5 * once)
    base = (exact.m, exact.weight, layer.size, layer.geometry)
    found = squared_conv_input(*base, z=exact.z, activation="relu")
    assert_same(found, PLAIN.brute(exact) * (exact.z > 0))


@over(MANY_CHANNELS)
@pytest.mark.usefixtures("cpp", "threads")
def test_threads_give_the_same_bits_with_many_channels(layer: Layer) -> None:
    data, found = draw(layer, torch.float32), []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        found.append(PLAIN.run(data))
    assert found[0].any()
    assert all(torch.equal(found[0], other) for other in found[1:])


@over(
    [
        layer_of("conv2d", 12, 10, 13, 8, kernel_size=3, stride=2, padding=1),
        layer_of("conv2d", 9, 20, 7, 11, n=2, kernel_size=(4, 2), stride=(1, 3)),
        layer_of("conv1d", 10, 17, 30, kernel_size=5, stride=3, dilation=2, padding=4),
    ]
)
def test_strides_and_many_channels(layer: Layer) -> None:
    """Whoever serves them: torch's convolution is taken for its speed."""
    data = draw(layer, torch.float32, integers=True)
    base = (data.m, data.weight, layer.size, layer.geometry)
    wanted = PLAIN.brute(data)
    assert_same(PLAIN.run(data), wanted)
    assert_same(squared_conv_input(*base, z=data.z, activation="relu"), wanted * (data.z > 0))
    out = torch.ones_like(wanted, dtype=torch.float32)
    assert_same(PLAIN.run(data, out=out, decay=2.0, scale=0.5), 2.0 + 0.5 * wanted)


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
