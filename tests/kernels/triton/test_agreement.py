"""Triton kernels against the oracles of the ops, on the same layers as the compiled kernels.

Every op meets every kind of layer, and every layer of the table meets some op; all of the table
with all ops is marked slow.
"""

from __future__ import annotations

import pytest
import torch

from lapkernels import use_backend
from lapkernels.kernels.triton import MODULES
from tests.ops.cases import FEW, LAYERS, SIZES, Layer, draw, over
from tests.ops.compare import assert_same, assert_within, exact_in
from tests.ops.operations import OPERATIONS, Operation, each

pytestmark = pytest.mark.usefixtures("forced")

SERVED = [operation for operation in OPERATIONS if operation.name.split("-")[0] in MODULES]
HALVES = pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])


def test_every_op_has_a_case() -> None:
    pointwise = {
        name
        for name, module in MODULES.items()
        if module in ("parameter_lists", "squared_derivative")
    }
    assert {operation.name.split("-")[0] for operation in SERVED} == {*MODULES} - pointwise


@each(SERVED)
@over(FEW)
def test_is_exact_on_integers(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    assert operation.magnitude(data).max() <= exact_in(torch.float32), "partial sums might round"
    assert_same(operation.run(data), operation.brute(data))


# One op for each of the other layers, each op in turn.
IN_TURN = [
    pytest.param(
        SERVED[index % len(SERVED)], layer, id=f"{layer.id}-{SERVED[index % len(SERVED)].name}"
    )
    for index, layer in enumerate(LAYERS[len(FEW) :])
    if layer.positions < 1000
]


@pytest.mark.parametrize(("operation", "layer"), IN_TURN)
def test_equals_brute_force(operation: Operation, layer: Layer) -> None:
    _check_rounded(operation, layer, torch.float64)


def _phased(kind: str, kernel: int, stride: int, dilation: int) -> Layer:
    options = {"kernel_size": kernel, "stride": stride, "dilation": dilation, "padding": 2}
    return Layer(kind, (2, 3), (13,), 2, 1, tuple(options.items()))


# Taps of a phase: with a stride that shares a factor with the dilation or not, and too few for all.
PHASED = [
    _phased(kind, *taps)
    for kind in ("conv1d", "conv_transpose1d")
    for taps in ((4, 3, 2), (3, 2, 2), (3, 4, 6), (2, 3, 1))
]


@each([o for o in SERVED if o.name in ("squared_conv_input", "kronecker_input-bias")])
@over(PHASED)
def test_stride_and_dilation(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    assert_same(operation.run(data), operation.brute(data))


@pytest.mark.slow
@each(SERVED)
@over([*LAYERS, *SIZES])
@DTYPES
def test_equals_brute_force_everywhere(
    operation: Operation, layer: Layer, dtype: torch.dtype
) -> None:
    _check_rounded(operation, layer, dtype)


def _check_rounded(operation: Operation, layer: Layer, dtype: torch.dtype) -> None:
    data = draw(layer, dtype)
    found = operation.run(data)
    assert found.dtype == dtype
    slack = operation.tolerance(data, dtype)
    empty = layer.samples == 0
    assert_within(found, operation.brute(data), slack, empty=empty)
    with use_backend("reference"):
        assert_within(found, operation.run(data), 2 * slack, empty=empty)


@each(SERVED)
@over([FEW[3]])
@HALVES
def test_sums_of_halves_are_kept_in_single(
    operation: Operation, layer: Layer, half: torch.dtype
) -> None:
    """Only the numbers read and the result are rounded to half precision."""
    data = draw(layer, torch.float32).map(lambda tensor: tensor.to(half))
    found = operation.run(data)
    assert found.dtype == half
    exact = operation.brute(data.map(torch.Tensor.float))
    rounding = torch.finfo(half).eps * exact.abs() + torch.finfo(half).tiny
    single = operation.tolerance(data.map(torch.Tensor.float), torch.float32)
    assert_within(found, exact, rounding + single)
