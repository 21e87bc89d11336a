"""Accumulation into a user's buffer: out <- decay * out + scale * value."""

from __future__ import annotations

import pytest
import torch

from tests.ops.cases import FEW, Layer, draw, over
from tests.ops.compare import assert_same
from tests.ops.layouts import BUFFERS
from tests.ops.operations import WITH_OUT, Operation, each

# Halves and threes of small integers are exact.
FACTORS = [(1.0, 1.0), (0.0, 1.0), (0.5, 3.0), (0.0, 3.0), (1.0, -2.0)]


@each(WITH_OUT)
@over(FEW)
@pytest.mark.parametrize(("decay", "scale"), FACTORS)
@pytest.mark.usefixtures("backend")
def test_out_accumulates(operation: Operation, layer: Layer, decay: float, scale: float) -> None:
    data = draw(layer, torch.float32, integers=True)
    value = operation.brute(data)
    out = torch.arange(value.numel(), dtype=torch.float32).remainder(7).reshape(value.shape)
    wanted = decay * out + scale * value
    if decay == 0:
        out.fill_(float("nan"))  # what is there is not read
    result = operation.run(data, out=out, decay=decay, scale=scale)
    assert result is out
    assert_same(out, wanted)


@each(WITH_OUT)
@over(FEW)
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.usefixtures("backend")
def test_out_anywhere(operation: Operation, layer: Layer, buffer: str, dtype: torch.dtype) -> None:
    data = draw(layer, dtype, integers=True)
    value = operation.brute(data)
    target = BUFFERS[buffer](value.to(dtype))
    target.view.fill_(4.0)
    operation.run(data, out=target.view, decay=0.5, scale=3.0)
    assert_same(target.view, 2.0 + 3.0 * value)
    target.assert_untouched_outside()


@each(WITH_OUT)
@over(FEW[:4])
@pytest.mark.usefixtures("backend")
def test_scale_without_out(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32, integers=True)
    assert_same(operation.run(data, scale=3.0), 3.0 * operation.brute(data))


@each(WITH_OUT)
@over(FEW)
@pytest.mark.usefixtures("backend")
def test_empty_batch_leaves_the_decayed_buffer(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32).samples(slice(0, 0))
    value = operation.run(data)
    out = torch.full_like(value, 4.0)
    operation.run(data, out=out, decay=0.5)
    assert (out == 2.0).all()
    operation.run(data, out=out.fill_(float("nan")), decay=0.0)
    assert (out == 0.0).all()


@each(WITH_OUT)
@over(FEW)
@pytest.mark.usefixtures("backend")
def test_unfit_out_is_refused(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32)
    value = operation.run(data)
    unfit = [
        value.new_zeros(*value.shape, 1),
        value.new_zeros(value.shape[0] + 1, *value.shape[1:]),
        value.new_zeros(1),
        value.double(),
        value.long(),
        value.to("meta"),
    ]
    for out in unfit:
        with pytest.raises((ValueError, TypeError, RuntimeError), match=r"\bout\b"):
            operation.run(data, out=out)
