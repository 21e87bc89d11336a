"""Fixtures of the CUDA tests: each case runs emulated on the CPU, and on a GPU if there is one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from lapkernels import use_backend
from lapkernels.kernels import current_backend
from lapkernels.ops.base import registration
from tests.cuda import build

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@dataclass(frozen=True)
class Target:
    """Where the CUDA kernels run; `to` moves a tensor there."""

    name: str
    to: Callable[[Tensor], Tensor]


def _emulated_op(name: str, *tensors: Any) -> Callable[..., Any] | None:
    """Serves in place of the compiled kernel; one that is missing is an error."""
    if current_backend() == "reference":
        return None
    return getattr(torch.ops.lapkernels_emulated, name).default


@pytest.fixture(scope="session")
def emulation() -> None:
    """The emulated ops, loaded into torch."""
    if shutil.which(build.COMPILER) is None:
        pytest.skip("there is no C++ compiler")
    torch.ops.load_library(build.library())


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """The emulation on CPU tensors, or a GPU."""
    if request.param == "gpu":
        with use_backend("cuda"):
            yield Target("gpu", lambda tensor: tensor.cuda())
        return
    request.getfixturevalue("emulation")
    monkeypatch.setattr(registration, "compiled", _emulated_op)
    with use_backend("cpp"):
        yield Target("emulated", lambda tensor: tensor)


@pytest.fixture(params=DTYPES, ids=[str(dtype).removeprefix("torch.") for dtype in DTYPES])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
