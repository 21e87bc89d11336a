"""Sizes at which kernels change over; every kind of layer is in test_agreement."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lapkernels.ops import conv_weight, serving, squared_conv_input
from lapkernels.ops.base.matrix_products import CHUNK
from tests.ops import oracle
from tests.ops.cases import Layer, draw, layer_of, over
from tests.ops.compare import assert_same, assert_same_bits, assert_within, exact_in
from tests.ops.operations import OPERATIONS

BY_NAME = {operation.name: operation for operation in OPERATIONS}
INPUT, SQUARED_SUM = BY_NAME["squared_conv_input"], BY_NAME["jacobian_squared_sum"]


def assert_exact(layer: Layer, *names: str) -> None:
    """On integers."""
    data = draw(layer, torch.float32, integers=True)
    for name in names:
        assert BY_NAME[name].magnitude(data).max() <= exact_in(torch.float32)
        assert_same(BY_NAME[name].run(data), BY_NAME[name].brute(data))


# Positions from one to many, columns from one to many: both forms and where they change over.
FORMS = [
    Layer("conv1d", (3, 5), (length + 2,), 2, columns, (("kernel_size", 3),))
    for length in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 65, 257)
    for columns in (1, 2, 8, 9, 33)
]


@over(FORMS)
@pytest.mark.usefixtures("backend")
def test_every_ratio_of_positions_to_columns(layer: Layer) -> None:
    assert_exact(layer, "jacobian_squared_sum")


CHANNELS = [
    Layer("conv2d", (inputs, outputs), (5, 6), 2, 2, (("kernel_size", 3), ("padding", 1)))
    for inputs in (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
    for outputs in (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
]


@over(CHANNELS)
@pytest.mark.usefixtures("backend")
def test_every_number_of_channels(layer: Layer) -> None:
    assert_exact(layer, "squared_conv_input", "squared_conv_weight", "jacobian_squared_sum")


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
    assert_exact(layer, "jacobian_squared_dot", "jacobian_gram", "jacobian_squared_sum")


@over(LINES[:3] + LINES[-8:])
@pytest.mark.usefixtures("backend")
def test_strided_lines(layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    wanted = SQUARED_SUM.brute(data)
    sparse = torch.stack([data.s, data.s], -1)[..., 0]
    turned = data.s.mT.contiguous().mT
    channels_last = data.s.movedim(2, -1).contiguous().movedim(-1, 2)
    for s in (sparse, turned, channels_last):
        assert_same(SQUARED_SUM.run(replace(data, s=s, x=data.x.mT.contiguous().mT)), wanted)


# Sizes that torch's products serve: few columns on sequences, in chunks of samples; few rows or
# features; few channels at many positions. And one more of each, for the kernels.
FEW_COLUMNS = [
    layer_of("linear", 1, 1, 2, n=1, v=1),
    layer_of("linear", 4, 7, 3, n=5, v=1),
    *(
        layer_of("linear", 5, 2, 9, n=6, v=v)
        for v in (serving.FEW_COLUMNS, serving.FEW_COLUMNS + 1)
    ),
    layer_of("linear", CHUNK // 32, 16, 2, n=9, v=2),
]
ROWS, FEATURES = serving.MOMENT_ROWS, serving.MOMENT_FEATURES
CHANNELS_AT_MANY = serving.MOMENT_CHANNELS
SECOND_MOMENTS = [
    *(
        layer_of("linear", features, features, n=n)
        for features, n in (
            (3, 5),
            (FEATURES + 1, ROWS),
            (FEATURES, ROWS + 1),
            (FEATURES + 1, ROWS + 1),
        )
    ),
    layer_of("linear", FEATURES + 8, 4, ROWS // 2, n=2),
    layer_of("linear", 6, 6, 9, n=40),
    *(
        layer_of("conv1d", channels, channels, serving.MOMENT_POSITIONS, kernel_size=1)
        for channels in (1, 3, CHANNELS_AT_MANY, CHANNELS_AT_MANY + 1)
    ),
    layer_of("conv2d", 6, 6, 3, serving.MOMENT_POSITIONS, n=4, kernel_size=1, groups=2),
]


@over(FEW_COLUMNS)
@pytest.mark.usefixtures("backend")
def test_few_columns_on_sequences(layer: Layer) -> None:
    assert_exact(layer, "jacobian_squared_sum")


@over(SECOND_MOMENTS)
@pytest.mark.usefixtures("backend")
def test_second_moments(layer: Layer) -> None:
    assert_exact(
        layer, *(name for name in BY_NAME if name.startswith("kronecker") and "bias" not in name)
    )


@pytest.mark.usefixtures("backend")
def test_one_nan_stays_in_its_row() -> None:
    data = draw(FEW_COLUMNS[1]).map(torch.clone, "s")
    data.s[0, 1, 2, 3] = torch.nan
    found = SQUARED_SUM.run(data).isnan()
    assert found[3].all() and not found[[0, 1, 2, 4, 5, 6]].any()


# Of many channels vectors run along them.
INPUTS = [
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

# Of many rows vectors run along them, and short samples go together.
WEIGHTS = [
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

MANY_CHANNELS = pytest.mark.parametrize(
    ("name", "layer"),
    [
        pytest.param(name, layer, id=f"{name}-{layer.id}")
        for name, layers in (("squared_conv_input", INPUTS), ("squared_conv_weight", WEIGHTS))
        for layer in layers
    ],
)


@MANY_CHANNELS
@pytest.mark.usefixtures("cpp")
def test_many_channels(name: str, layer: Layer, dtype: torch.dtype) -> None:
    operation = BY_NAME[name]
    exact, random = draw(layer, dtype, integers=True), draw(layer, dtype)
    assert_same(operation.run(exact), operation.brute(exact))
    once = operation.run(random)
    assert_within(once, operation.brute(random), operation.tolerance(random, dtype))
    assert_same(operation.run(random, out=once.clone(), decay=2.0, scale=0.5), 2.5 * once)
    if operation is INPUT:
        base = (exact.m, exact.weight, layer.size, layer.geometry)
        found = squared_conv_input(*base, z=exact.z, activation="relu")
        assert_same(found, INPUT.brute(exact) * (exact.z > 0))
    else:
        found = conv_weight(exact.s[0], exact.x, layer.geometry)
        assert_same(found, oracle.weight_gradient(exact).to(dtype))


@MANY_CHANNELS
@pytest.mark.usefixtures("cpp")
def test_threads_give_the_same_bits(name: str, layer: Layer) -> None:
    data = draw(layer, torch.float32)
    assert_same_bits(lambda: BY_NAME[name].run(data))


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
    wanted = INPUT.brute(data)
    assert_same(INPUT.run(data), wanted)
    assert_same(squared_conv_input(*base, z=data.z, activation="relu"), wanted * (data.z > 0))
    out = torch.ones_like(wanted, dtype=torch.float32)
    assert_same(INPUT.run(data, out=out, decay=2.0, scale=0.5), 2.0 + 0.5 * wanted)
