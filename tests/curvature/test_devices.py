"""Every curvature function on a device of its own: all it makes is where the model and data are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.curvature import check
from tests.curvature.functions import tensors
from tests.curvature.methods import Turn, Variant, variants
from tests.curvature.truth import Truth

# Convolutions, norms, embeddings, attention and pooling.
NETWORKS = [
    "conv2d",
    "residual-conv-batch-norm",
    "embedding",
    "multihead-batch-first",
    "pool-max-pool2d",
]
CASES = [
    pytest.param(id, variant, id=f"{id}-{place}-{variant.column}")
    for turn, id in enumerate(NETWORKS)
    for place, variant in enumerate(variants(Turn(turn)))
]
# Numbers that are drawn differ from device to device.
DRAWN = ("mc", "signs")


def moved(value: Any, device: str) -> Any:
    if isinstance(value, tuple):
        return tuple(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {name: moved(part, device) for name, part in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value


def assert_no_default_device(run: Callable[[], Any]) -> None:
    """The default device holds no numbers, so that a tensor made there by mistake shows."""
    wanted = [tensor.detach().clone() for tensor in tensors(run())]
    with torch.device("meta"):
        found = [*tensors(run())]
    assert found and len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.device == other.device
        assert torch.equal(one, other)


def problem(id: str) -> check.Problem:
    return Truth(id).problem("gaussian", torch.float64)


@pytest.mark.parametrize(("id", "variant"), CASES)
def test_nothing_is_made_on_the_default_device(id: str, variant: Variant) -> None:
    given = problem(id)
    assert_no_default_device(lambda: variant.run(given))


@pytest.mark.parametrize(("id", "variant"), CASES)
def test_nothing_is_made_in_the_default_dtype(id: str, variant: Variant) -> None:
    """The default dtype has few digits, so that a number kept in it by mistake shows."""
    given = problem(id)
    wanted = [*tensors(variant.run(given))]
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        found = [*tensors(variant.run(given))]
    finally:
        torch.set_default_dtype(default)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize(("id", "variant"), CASES)
def test_gpu_gives_what_the_cpu_gives(id: str, variant: Variant) -> None:
    given = problem(id)
    wanted = [*tensors(variant.run(given))]
    there = replace(
        given, model=copy.deepcopy(given.model).cuda(),
        x=moved(given.x, "cuda"), y=moved(given.y, "cuda"), f=given.f.cuda(),
    )  # fmt: skip
    found = [*tensors(variant.run(there))]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.is_cuda and one.shape == other.shape
        if variant.methods[0] not in DRAWN:
            scale = other.abs().max() if other.numel() else 0.0
            assert (one.cpu() - other).abs().max() <= 1e-9 * scale
