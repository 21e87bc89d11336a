"""How a case is measured: a gate on the result, then interleaved rounds; peak memory elsewhere."""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import Family, Method

# A round repeats a short call until it lasts this long, far above the timer's own cost.
ROUND_SECONDS = 2e-3
MIN_ROUNDS = 3


@dataclass
class Outcome:
    """What became of a method in a case; ``refused`` says why it was not timed."""

    error: float | None = None
    refused: str | None = None
    seconds: list[float] = field(default_factory=list)
    iterations: int = 1


def measure(
    family: Family,
    size: Any,
    methods: Sequence[Method],
    *,
    device: torch.device,
    rounds: int,
    seconds: float,
) -> dict[str, Outcome]:
    """Gate the methods of a case, then time those that passed, interleaved.

    Every round runs each method once, in an order that is reversed in every other round. Rounds
    end after ``rounds``, or after ``seconds`` in all if three are done by then.
    """
    arguments = family.make(size, device)
    outcomes, calls = gate(family, arguments, methods)
    for name, call in calls.items():
        outcomes[name].iterations = _iterations(call, device)
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


def gate(
    family: Family, arguments: tuple[Any, ...], methods: Sequence[Method]
) -> tuple[dict[str, Outcome], dict[str, Any]]:
    """Outcomes with errors, and a call without arguments for each method that may be timed."""
    fresh = copy.deepcopy if family.in_place else (lambda value: value)
    expected = family.oracle(*fresh(arguments))
    outcomes: dict[str, Outcome] = {}
    calls: dict[str, Any] = {}
    for method in methods:
        outcome = outcomes[method.name] = Outcome()
        try:
            given = method.setup(*arguments) if method.setup else arguments
            result = method.run(*fresh(given))
        # Other packages raise what they like where they do not support something.
        except Exception as error:
            outcome.refused = f"raised {type(error).__name__}: {error}"
            continue
        if method.kind != "unit":
            outcome.error = relative_error(result, expected)
            if not outcome.error <= family.tolerance:
                outcome.refused = f"wrong: error {outcome.error:.1e} > {family.tolerance:.0e}"
                continue
        calls[method.name] = lambda run=method.run, given=given: run(*given)
    return outcomes, calls


def relative_error(result: Any, expected: Any) -> float:
    """Largest difference over largest expected entry, the worst over a list's or dict's tensors."""
    ours, right = tensors(result), tensors(expected)
    if [t.shape for t in ours] != [t.shape for t in right]:
        return math.inf
    errors = [
        float((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-300))
        for a, b in zip(ours, right, strict=True)
    ]
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a result: one, a sequence, or a dict in its order."""
    if isinstance(value, Tensor):
        return [value]
    return list(value.values() if isinstance(value, Mapping) else value)


def synchronize(device: torch.device) -> None:
    """Wait for work that was only queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _iterations(call: Any, device: torch.device) -> int:
    """Calls that make up a round: one for a long call, judged by the best of five for a short."""
    once = _time(call, 1, device)
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
