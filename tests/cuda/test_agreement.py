"""Every op on a layer, by its CUDA kernels, against brute force; the cases are the CPU kernels'."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.cuda.conftest import Target
from tests.cuda.precision import stored, summed_in
from tests.ops.cases import FEW, LAYERS, SIZES, Data, Layer, draw, over
from tests.ops.compare import assert_same, assert_within
from tests.ops.layouts import BUFFERS, LAYOUTS
from tests.ops.operations import WITH_OUT, Operation, each

# Ops without a buffer are sums by torch itself.
CONV, TRANSPOSED = FEW[3], FEW[6]
# More columns than one tile of the Gram matrix, or than a stack, takes.
# More rows than a narrow tile is taken for.
WIDE = Layer("conv1d", (34, 48), (8,), 2, 2, (("kernel_size", 3), ("padding", 1)))
# Read in vectors: along channels, along positions, and both tensors along positions.
VECTORS = [
    Layer("linear", (8, 12), (6,)),
    Layer("linear", (36, 40), (5,), columns=1),
    Layer("conv2d", (4, 3), (6, 8), options=(("kernel_size", 3), ("padding", 1))),
    Layer("conv2d", (8, 36), (6, 6), options=(("kernel_size", 1),)),
    Layer("conv1d", (4, 8), (64,), options=(("kernel_size", 1), ("groups", 2))),
]
MANY_COLUMNS = [replace(layer, columns=v) for layer in (CONV, TRANSPOSED) for v in (16, 19, 33)]


def moved(data: Data, target: Target) -> Data:
    return data.map(target.to)


@each(WITH_OUT)
@over([*LAYERS, SIZES[9], SIZES[12], *MANY_COLUMNS, *VECTORS])
def test_is_exact_on_integers(operation: Operation, layer: Layer, target: Target) -> None:
    data = draw(layer, torch.float32, integers=True)
    found = operation.run(moved(data, target)).cpu()
    assert_same(found, operation.brute(data), empty=layer.samples == 0)


@each(WITH_OUT)
@over([*FEW, WIDE])
def test_equals_brute_force(
    operation: Operation, layer: Layer, dtype: torch.dtype, target: Target
) -> None:
    data = draw(layer, dtype)
    # An eighth, since float16 ends at 65504; exact in every dtype.
    wanted = operation.brute(data) / 8
    found = target.to(torch.full(wanted.shape, float("nan"), dtype=dtype))
    operation.run(moved(data, target), out=found, decay=0.0, scale=0.125)
    # Contributions of padding modes to the input are added up by torch, in the dtype itself.
    folded = "squared_conv_input" in operation.name and layer.geometry.padding_mode != "zeros"
    tolerance = operation.tolerance(data, dtype if folded else summed_in(dtype))
    assert_within(found.cpu(), wanted, stored(wanted, tolerance / 8, dtype))


@each(WITH_OUT)
@over([FEW[1], CONV, TRANSPOSED])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_memory_format(operation: Operation, layer: Layer, layout: str, target: Target) -> None:
    data = draw(layer, torch.float32, integers=True)
    found = operation.run(moved(data, target).map(LAYOUTS[layout]))
    assert_same(found.cpu(), operation.brute(data))


@each(WITH_OUT)
@over([FEW[1], CONV, TRANSPOSED])
@pytest.mark.parametrize("buffer", BUFFERS)
def test_accumulates_anywhere(
    operation: Operation, layer: Layer, buffer: str, target: Target
) -> None:
    data = draw(layer, torch.float32, integers=True)
    value = operation.brute(data)
    place = BUFFERS[buffer](target.to(value.float()))
    place.view.fill_(4.0)
    operation.run(moved(data, target), out=place.view, decay=0.5, scale=3.0)
    assert_same(place.view.cpu(), 2.0 + 3.0 * value)
    place.assert_untouched_outside()
    place.view.fill_(float("nan"))
    operation.run(moved(data, target), out=place.view, decay=0.0)
    assert_same(place.view.cpu(), value)


@each(WITH_OUT)
@over([CONV, LAYERS[10]])
def test_order_of_blocks_does_not_show(operation: Operation, layer: Layer, target: Target) -> None:
    """Every call of the emulation shuffles the blocks anew; a GPU does what it likes."""
    data = moved(draw(layer, torch.float32), target)
    first = operation.run(data)
    for _ in range(3):
        assert torch.equal(operation.run(data), first)


@each([operation for operation in WITH_OUT if operation.sample_dim is not None])
@over([CONV])
def test_nan_stays_in_its_sample(operation: Operation, layer: Layer, target: Target) -> None:
    assert operation.sample_dim is not None
    data = draw(layer, torch.float32, integers=True)
    wanted = operation.brute(data)
    sick = data.map(torch.Tensor.clone)
    for tensor in (sick.x, sick.m, sick.z):
        tensor[1] = float("nan")
    sick.s[:, 1] = float("nan")
    found = operation.run(moved(sick, target)).cpu()
    kept = [0, 2]
    assert_same(
        found.index_select(operation.sample_dim, torch.tensor(kept)),
        wanted.index_select(operation.sample_dim, torch.tensor(kept)),
    )
    assert found.select(operation.sample_dim, 1).isnan().any()
