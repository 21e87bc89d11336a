"""Every op on every layer, against autograd: rounded numbers and exact integers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.ops.cases import FEW, LAYERS, SIZES, Layer, draw, over
from tests.ops.compare import assert_same, assert_within, exact_in
from tests.ops.operations import OPERATIONS, Operation, each


@each(OPERATIONS)
@over(LAYERS)
@pytest.mark.usefixtures("backend")
def test_equals_brute_force(operation: Operation, layer: Layer, dtype: torch.dtype) -> None:
    data = draw(layer, dtype)
    found = operation.run(data)
    assert found.dtype == dtype
    assert_within(found, operation.brute(data), operation.tolerance(data, dtype))


@each(OPERATIONS)
@over(LAYERS)
@pytest.mark.usefixtures("backend")
def test_is_exact_on_integers(operation: Operation, layer: Layer, dtype: torch.dtype) -> None:
    data = draw(layer, dtype, integers=True)
    assert operation.magnitude(data).max() <= exact_in(dtype), "partial sums might round"
    assert_same(operation.run(data), operation.brute(data))


@each(OPERATIONS)
@over(SIZES)
@pytest.mark.usefixtures("backend")
def test_any_number_of_samples_and_columns(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    assert_same(operation.run(data), operation.brute(data), empty=layer.samples == 0)


@each([one for one in OPERATIONS if one.name.startswith(("kronecker", "jacobian_gram"))])
@over([*FEW, *(replace(layer, columns=9) for layer in FEW)])
@pytest.mark.usefixtures("cpp")
def test_is_symmetric_to_the_bit(operation: Operation, layer: Layer, dtype: torch.dtype) -> None:
    """The kernels compute one half and mirror it."""
    if operation.name == "jacobian_gram_bias":
        return
    found = operation.run(draw(layer, dtype))
    assert_same(found, found.mT)


@each([one for one in OPERATIONS if one.name.startswith("jacobian_")])
@over([replace(FEW[k], columns=v, samples=2) for k in (1, 3, 6) for v in (*range(3, 14), 17, 40)])
@pytest.mark.usefixtures("backend")
def test_more_columns_than_a_tile(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    assert operation.magnitude(data).max() <= exact_in(torch.float32)
    assert_same(operation.run(data), operation.brute(data))
