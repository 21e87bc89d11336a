"""Some values of each tensor: the same ones from the kernel and from torch, whatever the layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapkernels import use_backend
from lapkernels.kernels import NATIVE
from lapkernels.kernels.native import native_op
from lapkernels.kernels.selector import BACKENDS
from lapkernels.ops import value_samples
from lapkernels.ops.value_samples import COUNT, LENGTH

SIZES = (1, COUNT * LENGTH - 1, COUNT * LENGTH, COUNT * LENGTH + 1, 1000, 4097)


def tensors(dtype: torch.dtype) -> list[Tensor]:
    return [torch.arange(size).to(dtype) + 1 / 3 for size in SIZES]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_evenly_spaced_stretches(dtype: torch.dtype) -> None:
    given = tensors(dtype)
    known: list[Tensor] = []
    for one in given:
        starts = [k * (len(one) // COUNT) for k in range(COUNT)]
        parts = [one[start : start + LENGTH] for start in starts]
        known += [one] if len(one) <= COUNT * LENGTH else parts
    found = value_samples(given)
    assert found.dtype == torch.float64
    assert torch.equal(found, torch.cat(known).double())


@pytest.mark.usefixtures("backend")
def test_layouts_and_kinds_make_no_difference() -> None:
    x = torch.randn(2, 8, 20, 20, generator=torch.Generator().manual_seed(0))
    known = value_samples([x])
    assert len(known) == COUNT * LENGTH and known.unique().numel() > LENGTH
    assert torch.equal(value_samples([x.to(memory_format=torch.channels_last)]), known)
    assert torch.equal(value_samples([torch.nn.Parameter(x)]), known)
    assert torch.equal(value_samples([x, x.double()]), torch.cat([known, known]))


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_may_be_in_force(name: str) -> None:
    """Whatever the default device."""
    x = torch.arange(1000.0)
    known = value_samples([x])
    with use_backend(name), torch.device("meta"):
        assert torch.equal(value_samples([x]), known)


def test_nothing() -> None:
    assert value_samples([]).shape == (0,)
    assert value_samples([torch.zeros(0, 3), torch.ones(2)]).tolist() == [1, 1]


@pytest.mark.skipif(NATIVE.path is None, reason=f"no compiled library: {NATIVE.reason}")
def test_wrong_arguments_are_named() -> None:
    kernel = native_op("value_samples")
    assert kernel is not None
    x = torch.ones(3)
    for wrong, message in (
        (([], COUNT, LENGTH), "empty"),
        (([x], 0, LENGTH), "positive"),
        (([torch.ones(3, 2)[:, 0]], COUNT, LENGTH), "contiguous"),
        (([x.half()], COUNT, LENGTH), "dtype"),
        (([x, x.double()], COUNT, LENGTH), "dtype"),
    ):
        with pytest.raises(RuntimeError, match=message):
            kernel(*wrong)
