"""Checks of numbers: at once for the CPU, together for a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lapkernels.ops.base import checks
from lapkernels.ops.base.checks import expect, expect_finite, gathered


def fail() -> None:
    raise ValueError("wrong")


def found_nothing() -> None:
    """The sum overflowed, and no term did."""


def test_what_is_wrong_raises() -> None:
    expect_finite(torch.tensor(1.0), fail)
    expect_finite(torch.tensor(3), fail)
    expect(torch.ones(2, dtype=torch.bool), fail)
    for bad in ("nan", "inf"):
        with pytest.raises(ValueError, match="wrong"):
            expect_finite(torch.tensor(float(bad)), fail)
    with pytest.raises(ValueError, match="wrong"):
        expect(torch.tensor([True, False]), fail)
    expect_finite(torch.tensor(float("inf")), found_nothing)


class OnDevice(Tensor):
    """A number of the CPU that says it is on another device."""

    is_cpu: Any = False


def on_device(value: Any) -> Tensor:
    return torch.as_tensor(value).as_subclass(OnDevice)


@pytest.mark.parametrize("bad", [0, 1])
def test_those_of_a_device_are_read_together(bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Tensor] = []
    stack = torch.stack
    fake = SimpleNamespace(stack=lambda t: read.append(t) or stack(t), float32=torch.float32)
    monkeypatch.setattr(checks, "torch", fake)
    with gathered():
        expect(on_device([True, True]), fail)
        expect_finite(on_device(2.0), fail)
    assert len(read) == 1
    wrong = [(expect, on_device([True, False])), (expect_finite, on_device(float("nan")))][bad]
    reached = False
    with pytest.raises(ValueError, match="wrong"), gathered():
        expect_finite(on_device(1.0), found_nothing)
        wrong[0](wrong[1], fail)
        reached = True
    assert reached


def test_an_error_inside_comes_first() -> None:
    with pytest.raises(KeyError), gathered():
        expect_finite(on_device(float("nan")), fail)
        raise KeyError
