"""Runs every registered case: the interleaved measurements, handed to pytest-benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.gate import Outcome
from benchmarks.memory import MemoryServer
from benchmarks.registry import Family, Method


class ReplayClock:
    """A clock that stands still but for the durations it is told.

    pytest-benchmark times one test after the other; methods of a case are to be interleaved. So a
    case is measured beforehand, and each test replays its method's durations on this clock.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def read(self) -> float:
        return self._now

    def reset(self) -> None:
        """Back to zero, so that a short duration does not drown in a long sum."""
        self._now = 0.0

    def replay(self, durations: list[float]) -> Callable[[], None]:
        """A function whose n-th call takes the n-th duration."""
        left = iter(durations)

        def call() -> None:
            self._now += next(left)

        return call


CLOCK = ReplayClock()


@pytest.mark.benchmark(timer=CLOCK.read)
def test_case(
    family: Family,
    size: Any,
    method: Method,
    interleaved: Any,
    refuse: Callable[..., None],
    memory_server: MemoryServer | None,
    benchmark: Any,
) -> None:
    obstacle = method.obstacle(size)
    outcome = Outcome(refused=obstacle) if obstacle else interleaved.outcome(family, size, method)
    if outcome.refused:
        refuse(family, size, method, outcome.refused)
        # What is ours must be right; others may be wrong, and the report says so.
        (pytest.fail if method.kind == "ours" else pytest.skip)(outcome.refused)
    benchmark.group = f"{family.name}-{size}"
    benchmark.extra_info.update(
        family=family.name,
        case=str(size),
        size=asdict(size),
        method=method.name,
        kind=method.kind,
        error=outcome.error,
        peak_extra_bytes=memory_server and memory_server.measure(family, size, method),
    )
    replay = CLOCK.replay(outcome.seconds)
    benchmark.pedantic(replay, setup=CLOCK.reset, rounds=len(outcome.seconds))
