"""Padding modes that repeat the input: one pixel may be read by several taps of one output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lapkernels import ops
from lapkernels.ops.base.padding import fold_padding
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


class Copies(TorchDispatchMode):
    """Counts the ops that see a tensor on the host beside one of a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        seen = tree_leaves((args, kwargs, result))
        devices = {tensor.device.type for tensor in seen if isinstance(tensor, Tensor)}
        self.count += "cpu" in devices
        return result


@over(MEETING[5:7])
def test_nothing_is_copied_to_the_device_twice(layer: Layer) -> None:
    """A device without numbers stands for one that a copy would have to wait for."""
    data = draw(layer, torch.float32)
    m, weight, shape = data.m.to("meta"), data.weight.to("meta"), data.x.shape

    def op(m: Tensor, weight: Tensor, size: list[int], *rest: object) -> Tensor:
        return m.new_zeros([*shape[:2], *size])

    copies = []
    for _ in range(2):
        with Copies() as seen:
            value = fold_padding(m, weight, tuple(shape[2:]), layer.geometry, op)
        assert value.shape == shape and value.device.type == "meta"
        copies.append(seen.count)
    assert copies[0] > 0 and copies[1] == 0


def test_indices_found_in_inference_mode_serve_autograd() -> None:
    weight = torch.ones(1, 1, 3, dtype=torch.float64, requires_grad=True)
    m = torch.ones(1, 1, 23, dtype=torch.float64, requires_grad=True)
    geometry = ops.Geometry.conv((3,), padding=1, padding_mode="replicate")
    with torch.inference_mode():
        ops.squared_conv_input(m, weight, (23,), geometry)
    assert torch.autograd.gradcheck(
        lambda m, w: ops.squared_conv_input(m, w, (23,), geometry), (m, weight)
    )
