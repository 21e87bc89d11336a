"""References that take samples and channels a few at a time: any chunk gives the same result."""

from __future__ import annotations

import pytest
import torch

from lapkernels import use_backend
from lapkernels.ops.base import chunks
from tests.ops.cases import FEW, Layer, draw
from tests.ops.operations import OPERATIONS, Operation

JACOBIANS = [one for one in OPERATIONS if one.name.startswith("jacobian_")]


@pytest.mark.parametrize("size", [1, 40, 300])
@pytest.mark.parametrize("layer", FEW, ids=str)
@pytest.mark.parametrize("operation", JACOBIANS, ids=lambda one: one.name)
def test_reference(
    operation: Operation, layer: Layer, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = draw(layer)
    with use_backend("reference"):
        whole = operation.run(data)
        monkeypatch.setattr(chunks, "CHUNK", size)
        parts = operation.run(data)
    error = (parts - whole).abs()
    assert (error <= 2 * operation.tolerance(data, torch.float64)).all()


@pytest.mark.parametrize("size", [1, 7, 100])
def test_every_pair_comes_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", size)
    seen = torch.zeros(5, 4)
    for columns, rows in chunks.jacobian_chunks(5, 4, 3):
        assert seen[columns, rows].numel() * 3 <= max(size, 3)
        seen[columns, rows] += 1
    assert (seen == 1).all()
