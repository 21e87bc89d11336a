"""Benchmarks of a GPU, with one that is made up: what is timed, and whose memory is counted."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import conftest, measure, memory

CUDA = torch.device("cuda", 0)


class Device:
    """A GPU that works off what was queued, a second each, when it is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.queued = 0.0, 0
        self.held, self.peak = 100, 1000
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.held)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak)

    def wait(self, device: torch.device) -> None:
        assert device == CUDA
        self.now += self.queued
        self.queued = 0

    def reset(self, device: torch.device) -> None:
        assert self.queued == 0, "what was queued before still holds memory"
        self.peak = self.held

    def launch(self) -> None:
        """Queues a kernel that takes 30 bytes for a while, and returns at once."""
        self.queued += 1
        self.peak = max(self.peak, self.held + 30)


def test_timing_waits_for_the_device_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.queued = 7
    assert measure._time(device.launch, 5, CUDA) == 1.0
    assert device.now == 12.0


def test_memory_is_the_peak_of_the_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.queued = 7
    assert memory.peak_on_cuda(device.launch, CUDA) == 30
    assert device.queued == 0


@pytest.mark.parametrize(("name", "there"), [("cpu", False), ("cuda", True), ("cuda", False)])
def test_a_missing_device_is_named(name: str, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    config: Any = SimpleNamespace(option=SimpleNamespace(device=name), stash={})
    if name == "cpu" or there:
        conftest.pytest_configure(config)
    else:
        with pytest.raises(pytest.UsageError, match="--device cuda: .* finds no CUDA device"):
            conftest.pytest_configure(config)
