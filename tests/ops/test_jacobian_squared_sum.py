"""Sizes at which kernels of squared Jacobian columns change over; others are in test_agreement."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.ops.cases import Layer, draw, over
from tests.ops.compare import assert_same, exact_in
from tests.ops.operations import OPERATIONS

(OPERATION,) = [operation for operation in OPERATIONS if operation.name == "jacobian_squared_sum"]


# Positions from one to many, columns from one to many: both forms and where they change over.
FORMS = [
    Layer("conv1d", (3, 5), (length + 2,), 2, columns, (("kernel_size", 3),))
    for length in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 65, 257)
    for columns in (1, 2, 8, 9, 33)
]


@over(FORMS)
@pytest.mark.usefixtures("backend")
def test_every_ratio_of_positions_to_columns(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    assert OPERATION.magnitude(data).max() <= exact_in(torch.float32)
    assert_same(OPERATION.run(data), OPERATION.brute(data))


CHANNELS = [
    Layer("conv2d", (inputs, outputs), (5, 6), 2, 2, (("kernel_size", 3), ("padding", 1)))
    for inputs in (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
    for outputs in (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
]


@over(CHANNELS)
@pytest.mark.usefixtures("backend")
def test_every_number_of_channels(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    for operation in OPERATIONS:
        if operation.name in ("squared_conv_input", "squared_conv_weight", OPERATION.name):
            assert_same(operation.run(data), operation.brute(data))


# Lines of windows and positions: widths, heights and rows around the pieces that are multiplied at
# once, images of several slabs, and a last block of fewer channels; then many rows of few channels,
# with columns enough that blocks have all of them.
LINES = [
    Layer("conv2d", channels, size, 1, columns, (("kernel_size", k), ("padding", k // 2)))
    for channels, size, k, columns in [
        ((1, 7), (5, 200), 5, 2),
        ((3, 25), (30, 47), 5, 2),
        ((3, 6), (9, 130), 3, 2),
        ((4, 24), (17, 129), 5, 2),
        ((16, 23), (70, 150), 3, 2),
        ((40, 5), (6, 49), 5, 2),
        ((16, 7), (40, 33), 5, 2),
        ((2, 13), (64, 257), 3, 2),
        ((8, 12), (3, 48), 3, 2),
        ((90, 50), (7, 6), 5, 2),
        ((3, 64), (28, 28), 5, 9),
        ((3, 70), (10, 9), 3, 9),
        ((2, 64), (60, 3), 3, 9),
        ((5, 96), (50, 130), 5, 9),
        ((8, 64), (41, 66), 3, 9),
        # Rows that share few places of the cache: they lie a multiple of 2 KB apart.
        ((3, 64), (32, 32), 3, 2),
        ((3, 64), (8, 64), 5, 9),
        ((4, 64), (16, 32), 3, 9),
    ]
]


@over(LINES)
@pytest.mark.usefixtures("backend")
def test_lines_of_every_length(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    for operation in OPERATIONS:
        if operation.name in ("jacobian_squared_dot", "jacobian_gram", OPERATION.name):
            assert operation.magnitude(data).max() <= exact_in(torch.float32)
            assert_same(operation.run(data), operation.brute(data))


@over(LINES[:3] + LINES[-8:])
@pytest.mark.usefixtures("backend")
def test_strided_lines(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    wanted = OPERATION.brute(data)
    sparse = torch.stack([data.s, data.s], -1)[..., 0]
    turned = data.s.mT.contiguous().mT
    channels_last = data.s.movedim(2, -1).contiguous().movedim(-1, 2)
    for s in (sparse, turned, channels_last):
        assert_same(OPERATION.run(replace(data, s=s, x=data.x.mT.contiguous().mT)), wanted)
