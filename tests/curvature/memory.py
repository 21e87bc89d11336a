"""Peak extra memory of the diagonal, each case in a process of its own.

`python -m tests.curvature.memory` prints one JSON line a case. The process forks for every case
before it computes anything, so that a case starts clean without importing torch again. Blocks of
64 KiB and more are mappings of their own (the environment's MALLOC_ settings), which leave the
resident set when they are freed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.demo.memory import peak_extra_memory

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
METHODS = ("exact", "mc", "empirical", "approx", "mixed")


def wide_activations(outputs: int, size: int, batch: int) -> tuple[nn.Module, Tensor]:
    """Few parameters, large images."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, outputs),
    )
    return model, torch.randn(batch, 1, size, size)


def many_parameters(outputs: int, width: int) -> tuple[nn.Module, Tensor]:
    """Few activations, large matrices."""
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip
    return model, torch.randn(4, width)


@dataclass(frozen=True)
class Case:
    """A network, and a small one of the same kind that is run first to load code."""

    build: Callable[[], tuple[nn.Module, Tensor]]
    warm: Callable[[], tuple[nn.Module, Tensor]]
    options: dict[str, Any]


def _case(network: str, outputs: int, **options: Any) -> Case:
    if network == "activations":
        return Case(
            lambda: wide_activations(outputs, 256, 13),
            lambda: wide_activations(outputs, 32, 4),
            options,
        )
    return Case(
        lambda: many_parameters(outputs, 2048), lambda: many_parameters(outputs, 256), options
    )


def _cases() -> dict[str, Case]:
    found = {
        f"{network}-{outputs}-{method}": _case(network, outputs, method=method)
        for network in ("activations", "parameters")
        for outputs in (10, 1000)
        for method in METHODS
    }
    found["activations-10-autograd"] = _case("activations", 10, route="autograd")
    found["activations-10-least"] = _case("activations", 10, memory_budget=1)
    found["activations-10-generous"] = _case("activations", 10, memory_budget=1 << 30)
    return found


CASES = _cases()


def activations(model: nn.Module, x: Tensor) -> int:
    """Bytes of the results of all layers, without those that are views."""
    total = 0

    def count(module: nn.Module, args: Any, out: Tensor) -> None:
        nonlocal total
        total += 0 if isinstance(module, nn.Flatten) else out.nbytes

    handles = [m.register_forward_hook(count) for m in model.modules() if not list(m.children())]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return total


def measure(case: Case) -> dict[str, int | None]:
    """Bytes of the peak, the activations and the parameters."""
    torch.set_num_threads(1)

    def run(model: nn.Module, x: Tensor) -> object:
        y = torch.zeros(len(x), dtype=torch.int64)
        return lk.diag(model, (x, y), "categorical", **case.options)

    model, x = case.warm()
    run(model, x)
    model, x = case.build()
    sizes = activations(model, x), sum(p.nbytes for p in model.parameters())
    _, peak = peak_extra_memory(lambda: run(model, x))
    return {"peak": peak, "activations": sizes[0], "parameters": sizes[1]}


def main(names: list[str]) -> None:
    """Measure these cases, or all."""
    for name in names or CASES:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                print(json.dumps({"name": name, **measure(CASES[name])}), flush=True)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"{name} failed")


if __name__ == "__main__":
    main(sys.argv[1:])
