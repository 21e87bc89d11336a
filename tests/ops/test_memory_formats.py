"""Where a tensor lies in memory changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.ops.cases import FEW, Data, Layer, draw, over
from tests.ops.compare import assert_same
from tests.ops.layouts import LAYOUTS
from tests.ops.operations import OPERATIONS, Operation, each


@each(OPERATIONS)
@over(FEW)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("backend")
def test_layout_of_all_inputs(
    operation: Operation, layer: Layer, layout: str, dtype: torch.dtype
) -> None:
    data = draw(layer, dtype, integers=True)
    assert_same(operation.run(data.map(LAYOUTS[layout])), operation.brute(data))


CONV, TRANSPOSED = FEW[3], FEW[6]


@each(OPERATIONS)
@over([FEW[1], CONV, TRANSPOSED])
@pytest.mark.usefixtures("backend")
def test_layout_of_one_input(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    for name in operation.reads:
        for layout in LAYOUTS.values():
            assert_same(operation.run(data.map(layout, name)), operation.brute(data))


@each(OPERATIONS)
@over([FEW[1], CONV, TRANSPOSED])
@pytest.mark.usefixtures("backend")
def test_expanded_input(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    for name in operation.reads:
        for dim in range(getattr(data, name).dim()):
            spread = data.map(lambda t, dim=dim: _expanded(t, dim), name)
            wanted = operation.brute(spread.map(lambda t: t.contiguous(), name))
            assert_same(operation.run(spread), wanted)


def _expanded(tensor: Tensor, dim: int) -> Tensor:
    """All entries along one dimension are one place in memory."""
    value = tensor.narrow(dim, 0, 1) + 1
    return value.expand(tensor.shape)


@each(OPERATIONS)
@over([CONV])
@pytest.mark.usefixtures("backend")
def test_inputs_may_share_memory(operation: Operation, layer: Layer) -> None:
    """x is also z, as it is where an activation's output is its own derivative's argument."""
    data = draw(layer, torch.float32, integers=True)
    shared = Data(**{**vars(data), "z": data.x})
    apart = Data(**{**vars(data), "z": data.x.clone()})
    assert_same(operation.run(shared), operation.brute(apart))


@each(OPERATIONS)
@over(FEW)
@pytest.mark.usefixtures("backend")
def test_inputs_are_not_written(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32)
    before = [tensor.clone() for tensor in data.tensors]
    operation.run(data)
    assert all(torch.equal(a, b) for a, b in zip(before, data.tensors, strict=True))
