"""Padding modes that repeat the input: one pixel may be read by several taps of one output."""

from __future__ import annotations

import pytest
import torch

from tests.ops import oracle
from tests.ops.cases import Layer, draw, over
from tests.ops.compare import assert_same
from tests.ops.operations import OPERATIONS, Operation, each


def _layer(dims: int, size: tuple[int, ...], **options: object) -> Layer:
    return Layer(f"conv{dims}d", (2, 2), size, 2, 1, tuple(options.items()))


# Taps meet on one pixel: beside the border, across it, all of them, and by dilation.
MEETING = [
    _layer(1, (4,), kernel_size=5, padding=2, padding_mode="replicate"),
    _layer(1, (3,), kernel_size=5, padding=2, padding_mode="reflect"),
    _layer(1, (2,), kernel_size=5, padding=2, padding_mode="circular"),
    _layer(1, (1,), kernel_size=4, padding=3, padding_mode="replicate"),
    _layer(1, (5,), kernel_size=3, padding=4, dilation=4, stride=2, padding_mode="reflect"),
    _layer(2, (3, 2), kernel_size=3, padding=1, padding_mode="reflect"),
    _layer(2, (2, 3), kernel_size=(4, 3), padding=2, stride=(1, 2), padding_mode="circular"),
    _layer(2, (3, 4), kernel_size=4, padding="same", padding_mode="replicate"),
    _layer(2, (3, 3), kernel_size=3, padding=2, groups=2, padding_mode="replicate"),
    _layer(3, (2, 2, 2), kernel_size=3, padding=1, padding_mode="reflect"),
    _layer(3, (2, 1, 3), kernel_size=(3, 2, 3), padding=1, padding_mode="replicate"),
]


@each(OPERATIONS)
@over(MEETING)
@pytest.mark.usefixtures("backend")
def test_taps_that_meet(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    assert_same(operation.run(data), operation.brute(data))


@over(MEETING)
def test_taps_do_meet(layer: Layer) -> None:
    """Squares of weights alone would be wrong for each of these layers."""
    data = draw(layer, torch.float64, integers=True)
    plain = oracle._vjp(layer.module(), data.weight.square(), tuple(data.x.shape), data.m.double())
    assert not torch.equal(plain, oracle.squared_input(data))
