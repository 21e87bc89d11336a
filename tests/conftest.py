"""Settings that every test shares."""

from __future__ import annotations

import os

import pytest
import torch


def pytest_configure() -> None:
    """One thread in each process: tests run in parallel, and their tensors are small.

    Without a CUDA device Triton kernels run in Triton's interpreter, which is chosen at import.
    """
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def same_start() -> None:
    """One thread and the same random numbers, whichever tests ran before."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests marked `gpu` where there is no CUDA device.

    Tests under sanitizers come first: a minute each at the end would leave a processor idle.
    """
    items.sort(key=lambda item: "native" not in item.nodeid)
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
