"""Where tensors lie, what is in the buffer, and how often a kernel runs change nothing."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.triton.test_agreement import SERVED
from tests.ops.cases import FEW, draw
from tests.ops.compare import assert_same
from tests.ops.layouts import BUFFERS, LAYOUTS
from tests.ops.operations import Operation, each

pytestmark = pytest.mark.usefixtures("forced")

# Strided, padded, in two groups.
LAYER = FEW[2]


@each(SERVED)
def test_out_anywhere(operation: Operation) -> None:
    data = draw(LAYER, torch.float32, integers=True)
    value = operation.brute(data)
    target = BUFFERS["every_second"](value.float())
    target.view.fill_(4.0)
    operation.run(data.map(LAYOUTS["reversed_dims"]), out=target.view, decay=0.5, scale=3.0)
    assert_same(target.view, 2.0 + 3.0 * value)
    target.assert_untouched_outside()


@each(SERVED)
def test_no_decay_means_the_old_content_is_not_read(operation: Operation) -> None:
    data = draw(LAYER, torch.float64, integers=True)
    value = operation.brute(data)
    target = BUFFERS["in_the_middle"](value)
    target.view.fill_(float("nan"))
    operation.run(data, out=target.view, decay=0.0, scale=3.0)
    assert_same(target.view, 3.0 * value)
    target.assert_untouched_outside()


@each(SERVED)
def test_twice_gives_the_same_bits(operation: Operation) -> None:
    data = draw(LAYER, torch.float32)
    assert torch.equal(operation.run(data), operation.run(data))
