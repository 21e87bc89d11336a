"""The squared-kernel convolution onto weights with many channels; others are in test_agreement."""

from __future__ import annotations

import pytest
import torch

from lapkernels.ops import (
    conv_weight,
    squared_conv_weight,
)
from tests.ops import oracle
from tests.ops.cases import Layer, draw, layer_of, over
from tests.ops.compare import assert_same, assert_within
from tests.ops.operations import OPERATIONS

# Of many rows vectors run along them, and short samples go together.
MANY_CHANNELS = [
    layer_of("conv2d", 9, 18, 12, 10, n=12, kernel_size=3, padding=1),  # two samples at a time
    layer_of("conv2d", 5, 100, 6, 6, n=9, kernel_size=3, padding=1),  # panels of 4, 2 and 1 vectors
    layer_of("conv2d", 3, 40, 11, 13, n=2, kernel_size=(5, 7)),  # runs of five, one and one
    layer_of("conv2d", 16, 33, 50, 44, n=2, kernel_size=3, padding=1),  # several slabs of a sample
    layer_of("conv2d", 18, 34, 9, 7, n=5, kernel_size=3, stride=2, padding=1, groups=2),
    layer_of("conv1d", 8, 16, 700, n=3, kernel_size=5, dilation=2),
    layer_of("conv3d", 8, 17, 5, 4, 6, kernel_size=(3, 2, 3), padding=1),
    layer_of("conv_transpose2d", 24, 10, 6, 5, n=9, kernel_size=3, stride=2, padding=1),
    # Few rows of many channels: vectors run along the windows.
    layer_of("conv2d", 17, 5, 12, 9, n=3, kernel_size=3, padding=1),  # several lines at a time
    layer_of("conv2d", 24, 4, 40, 150, n=2, kernel_size=3, padding=1),  # some lines held, in parts
    layer_of("conv2d", 21, 6, 9, 14, n=3, kernel_size=(3, 2), stride=2, padding=(4, 3)),
    layer_of("conv2d", 40, 26, 7, 9, kernel_size=3, stride=(1, 3), dilation=(2, 1), groups=2),
    layer_of("conv1d", 30, 3, 100, n=2, kernel_size=7, padding=3),
    layer_of("conv3d", 20, 4, 5, 4, 6, kernel_size=(3, 2, 3), stride=(1, 2, 1), padding=1),
    layer_of("conv_transpose2d", 6, 33, 6, 5, n=2, kernel_size=(4, 3), stride=(2, 1), padding=1),
]


@over(MANY_CHANNELS)
@pytest.mark.usefixtures("cpp")
def test_many_channels(layer: Layer, dtype: torch.dtype) -> None:
    exact, random = draw(layer, dtype, integers=True), draw(layer, dtype)
    (operation,) = (one for one in OPERATIONS if one.name == "squared_conv_weight")
    assert_same(operation.run(exact), operation.brute(exact))
    once = operation.run(random)
    assert_within(once, operation.brute(random), operation.tolerance(random, dtype))
    assert_same(operation.run(random, out=once.clone(), decay=2.0, scale=0.5), 2.5 * once)
    found = conv_weight(exact.s[0], exact.x, layer.geometry)
    assert_same(found, oracle.weight_gradient(exact).to(dtype))


@over(MANY_CHANNELS)
@pytest.mark.usefixtures("cpp", "threads")
def test_threads_give_the_same_bits_with_many_channels(layer: Layer) -> None:
    data, found = draw(layer, torch.float32), []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        found.append(squared_conv_weight(data.m, data.x, layer.geometry))
    assert found[0].any()
    assert all(torch.equal(found[0], other) for other in found[1:])
