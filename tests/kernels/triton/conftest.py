"""Fixtures of the Triton tests: kernels on a device, or in Triton's interpreter without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lapkernels import use_backend
from lapkernels.kernels import triton


@pytest.fixture
def forced() -> Iterator[None]:
    """The backend triton, for tensors on cpu: the interpreter."""
    reason = triton.absent() or triton.why_not_device("cpu")
    if reason is not None:
        pytest.skip(f"no Triton kernels: {reason}")
    with use_backend("triton"):
        yield
