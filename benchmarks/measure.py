"""How a case is timed: after the gate, in interleaved rounds; peak memory elsewhere."""

from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.gate import Outcome, TooSlow, gate, within
from benchmarks.registry import Family, Method
from lapkernels.curvature.data.freed_memory import keep_freed_memory

# A round repeats a short call until it lasts this long, far above the timer's own cost.
ROUND_SECONDS = 2e-3
MIN_ROUNDS = 3
# A longer call is timed once.
LONG_SECONDS = 3.0


def measure(
    family: Family,
    size: Any,
    methods: Sequence[Method],
    *,
    device: torch.device,
    rounds: int,
    seconds: float,
    longest: float = 60.0,
) -> dict[str, Outcome]:
    """Gate the methods of a case, then time those that passed, interleaved.

    Every round runs each method once, in an order that is reversed in every other round. Rounds
    end after ``rounds``, or after ``seconds`` in all if three are done by then. A method whose
    call takes more than ``longest`` seconds is refused.
    """
    # Else what one method frees decides which of the others pay for fresh pages.
    keep_freed_memory()
    checked = family.checked(size) if family.checked else size
    outcomes, calls = gate(family, family.make(checked, device), methods, longest)
    if checked != size:
        passed = [method for method in methods if method.name in calls]
        calls = _prepare(family.make(size, device), passed, outcomes, longest)
    for name, call in list(calls.items()):
        once = _time(call, 1, device)
        if once > LONG_SECONDS:
            outcomes[name].seconds.append(once)
            del calls[name]
        else:
            outcomes[name].iterations = _iterations(call, once, device)
    start = time.perf_counter()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for index in range(rounds if calls else 0):
            if index >= MIN_ROUNDS and time.perf_counter() - start > seconds:
                break
            order = list(calls) if index % 2 == 0 else list(reversed(calls))
            for name in order:
                outcome = outcomes[name]
                outcome.seconds.append(_time(calls[name], outcome.iterations, device))
    finally:
        if enabled:
            gc.enable()
    return outcomes


def _prepare(
    arguments: tuple[Any, ...],
    methods: Sequence[Method],
    outcomes: Mapping[str, Outcome],
    longest: float,
) -> dict[str, Any]:
    """Calls at the size to be timed, without those that raise there."""
    calls: dict[str, Any] = {}
    for method in methods:
        try:
            given = method.setup(*arguments) if method.setup else arguments
            with within(longest):
                method.run(*given)
        except TooSlow as error:
            outcomes[method.name].refused = str(error)
        except Exception as error:
            outcomes[method.name].refused = f"raised {type(error).__name__}: {error}"
        else:
            calls[method.name] = functools.partial(method.run, *given)
    return calls


def synchronize(device: torch.device) -> None:
    """Wait for work that was only queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _iterations(call: Any, once: float, device: torch.device) -> int:
    """Calls that make up a round: one for a long call, judged by the best of five for a short."""
    if once < 20 * ROUND_SECONDS:
        once = min(once, *(_time(call, 1, device) for _ in range(4)))
    return max(1, math.ceil(ROUND_SECONDS / once))


def _time(call: Any, iterations: int, device: torch.device) -> float:
    """Seconds a call."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / iterations
