"""Bad samples stay apart, no columns give nothing, and threads change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.ops.cases import FEW, LAYERS, Layer, draw, over
from tests.ops.compare import assert_same_bits
from tests.ops.operations import OPERATIONS, PER_SAMPLE, SUMMED, WITH_OUT, Operation, each


@each([operation for operation in OPERATIONS if "s" in operation.reads])
@over(FEW)
@pytest.mark.usefixtures("backend")
def test_no_columns(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32)
    found = operation.run(replace(data, s=data.s[:0]))
    wanted = list(operation.run(data).shape)
    for dim in range(1, len(wanted)) if operation in PER_SAMPLE else ():
        wanted[dim] = 0
    assert list(found.shape) == wanted
    assert not found.any()


@each(PER_SAMPLE)
@over(FEW)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.usefixtures("backend")
def test_bad_sample_stays_in_its_place(operation: Operation, layer: Layer, poison: float) -> None:
    data = draw(layer, torch.float32)
    clean = operation.run(data)
    for name in operation.reads:
        if name in ("x", "s", "m", "z"):
            poisoned = data.map(torch.clone, name)
            row = getattr(poisoned, name)
            (row[:, 1] if name == "s" else row[1]).fill_(poison)
            found = operation.run(poisoned)
            assert not found[1].isfinite().any()
            assert torch.equal(found[[0, 2]], clean[[0, 2]])


@each(SUMMED)
@over(FEW)
@pytest.mark.usefixtures("backend")
def test_bad_sample_is_not_hidden_in_a_sum(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32)
    for name in operation.reads:
        poisoned = data.map(torch.clone, name)
        row = getattr(poisoned, name)
        (row[:, 1] if name == "s" else row[1]).fill_(float("nan"))
        assert operation.run(poisoned).isnan().any()


@each(WITH_OUT)
@over(LAYERS)
@pytest.mark.usefixtures("cpp")
def test_threads_give_the_same_bits(operation: Operation, layer: Layer) -> None:
    data = draw(layer, torch.float32)
    assert_same_bits(lambda: operation.run(data))
