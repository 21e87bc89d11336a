"""Fixtures of the op tests: each case runs on every backend and in every dtype."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lapkernels import use_backend
from lapkernels.kernels import NATIVE, triton


def _backend(name: str) -> Iterator[str]:
    if name == "cpp" and NATIVE.path is None:
        pytest.skip(f"no compiled library: {NATIVE.reason}")
    if name == "triton" and (triton.absent() or triton.why_not_device("cpu")):
        pytest.skip(f"no Triton kernels: {triton.absent() or triton.why_not_device('cpu')}")
    with use_backend(name):
        yield name


@pytest.fixture(params=["reference", "cpp", "auto"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The backend in force: the reference, the compiled kernels, and the choice among all."""
    yield from _backend(request.param)


@pytest.fixture(params=["reference", "cpp"])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """The reference and the compiled kernels, for ops that torch's library never serves."""
    yield from _backend(request.param)


@pytest.fixture(params=["reference", "cpp", "triton", "auto"])
def every_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same with Triton's interpreter, for ops that run few programs."""
    yield from _backend(request.param)


@pytest.fixture
def cpp() -> Iterator[str]:
    """The compiled kernels, for a test that makes no sense without them."""
    yield from _backend("cpp")


@pytest.fixture
def interpreted() -> Iterator[str]:
    """Triton's interpreter."""
    yield from _backend("triton")


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
