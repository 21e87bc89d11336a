"""The gate: a method's result against the oracle, before it is timed."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import Family, Method

# A mean of draws may be this many standard errors away from the expectation.
STANDARD_ERRORS = 6.0
# Sums with random signs that a tensor of draws is reduced to, besides its plain sum.
SIGNED_SUMS = 7


@dataclass
class Outcome:
    """What became of a method in a case; ``refused`` says why it was not timed."""

    error: float | None = None
    refused: str | None = None
    seconds: list[float] = field(default_factory=list)
    iterations: int = 1


class TooSlow(Exception):
    """A call took too long."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise ``TooSlow`` after this time, as soon as Python has its turn."""

    def stop(number: int, frame: Any) -> None:
        raise TooSlow(f"too slow: a call takes more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def gate(
    family: Family,
    arguments: tuple[Any, ...],
    methods: Sequence[Method],
    longest: float = 60.0,
) -> tuple[dict[str, Outcome], dict[str, Any]]:
    """Outcomes with errors, and a call without arguments for each method that may be timed."""
    fresh = copy.deepcopy if family.in_place else (lambda value: value)
    expected = family.oracle(*fresh(arguments))
    outcomes: dict[str, Outcome] = {}
    calls: dict[str, Any] = {}
    for method in methods:
        outcome = outcomes[method.name] = Outcome()
        try:
            if method.requires:
                # Before the time limit: an import that it cuts short cannot be had again.
                importlib.import_module(method.requires)
            given = method.setup(*arguments) if method.setup else arguments
            draw = functools.partial(_run, method, given, fresh)
            right = method.oracle(*fresh(arguments)) if method.oracle else expected
            with within(longest):
                if method.kind == "unit":
                    draw()
                else:
                    _judge(family, draw, right, outcome)
        except TooSlow as error:
            outcome.refused = str(error)
            continue
        # Other packages raise what they like where they do not support something.
        except Exception as error:
            outcome.refused = f"raised {type(error).__name__}: {error}"
            continue
        if outcome.refused is None:
            calls[method.name] = functools.partial(method.run, *given)
    return outcomes, calls


def _run(method: Method, given: tuple[Any, ...], fresh: Callable[[Any], Any]) -> Any:
    return method.run(*fresh(given))


def _judge(family: Family, call: Callable[[], Any], expected: Any, outcome: Outcome) -> None:
    if family.draws > 1:
        outcome.error, away = mean_error(call, expected, family.draws, family.tolerance)
        if not away <= STANDARD_ERRORS:
            mean = f"mean of {family.draws} draws"
            outcome.refused = f"wrong: {mean} is {away:.0f} standard errors away"
        return
    outcome.error = relative_error(call(), expected)
    if not outcome.error <= family.tolerance:
        outcome.refused = f"wrong: error {outcome.error:.1e} > {family.tolerance:.0e}"


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


def mean_error(
    draw: Callable[[], Any], expected: Any, draws: int, tolerance: float
) -> tuple[float, float]:
    """How far the mean of random results is from its expectation.

    Every tensor is reduced to a few sums: of its entries as they are, which sees a wrong scale, and
    with random signs, which sees entries in the wrong place. Single entries would be too noisy, and
    too many for a bound on the worst. Returns the largest difference over the size of such a sum,
    and the largest difference in standard errors; a standard error is never taken to be so small
    that a result within ``tolerance`` fails.
    """
    right = tensors(expected)
    generator = torch.Generator().manual_seed(0)
    signs = [
        torch.randint(2, (SIGNED_SUMS, t.numel()), generator=generator).double().mul_(2).sub_(1)
        for t in right
    ]

    def sums(values: Sequence[Tensor]) -> Tensor:
        flat = [t.detach().cpu().double().flatten() for t in values]
        return torch.stack(
            [torch.cat([v.sum()[None], s @ v]) for v, s in zip(flat, signs, strict=True)]
        )

    rows = []
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(0)
        for _ in range(draws):
            values = tensors(draw())
            if [t.shape for t in values] != [t.shape for t in right]:
                return math.inf, math.inf
            rows.append(sums(values))
    mean = torch.stack(rows).mean(0)
    flat = [t.cpu().double().flatten() for t in right]
    size = torch.stack([torch.stack([t.norm(1), *[t.norm()] * SIGNED_SUMS]) for t in flat])
    size = size.clamp_min(1e-300)
    floor = tolerance * size / STANDARD_ERRORS
    deviation = (torch.stack(rows).std(0) / math.sqrt(draws)).maximum(floor)
    difference = (mean - sums(right)).abs()
    return float((difference / size).max()), float((difference / deviation).max())


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Draws are of small networks, where a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a result: one, a sequence, or a dict in its order."""
    if isinstance(value, Tensor):
        return [value]
    return list(value.values() if isinstance(value, Mapping) else value)
