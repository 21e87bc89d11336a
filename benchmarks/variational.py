"""Steps of Variational Laplace over a step at the mode, and the error of its difference route.

python -m benchmarks.variational steps
python -m benchmarks.variational errors

A pre-activation ResNet with softplus and batch norm in training mode, 32 x 32. A step is loss,
backward pass and Adam; the plain one differentiates the squared gradient by torch's own double
backward.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lapkernels as lk
from benchmarks.architectures import resnet
from benchmarks.document import table, write
from benchmarks.report import duration
from lapkernels.curvature.data.batches import Batch
from lapkernels.variational import MeanField, Objective

RELATIVE = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
DATA_SIZE = 50_000
KEPT = "glibc was told to keep freed memory (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`)."
UNTOLD = "No settings of glibc from outside."


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("steps", "errors"))
    parser.add_argument("--out", type=Path, help="docs/measured/variational_<what>.md by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="of rounds")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--busy", action="store_true", help="CPU time of one thread, not wall time")
    parser.add_argument("--quick", action="store_true", help="a tiny network, for a test")
    chosen = parser.parse_args(argv)
    widths, side = ((4, 6), 8) if chosen.quick else ((16, 32, 64), 32)
    if chosen.what == "steps":
        title = "Steps of Variational Laplace"
        batch = 4 if chosen.quick else chosen.batch
        parts = steps_document(widths, side, batch, chosen.seconds, chosen.busy)
    else:
        title = "Error of Variational Laplace's difference route"
        parts = errors_document(widths, side)
    out = chosen.out or Path(f"docs/measured/variational_{chosen.what}.md")
    write(out, title, f"python -m benchmarks.variational {chosen.what}", parts)


def steps_document(
    widths: Sequence[int], side: int, batch: int, seconds: float, busy: bool
) -> list[str]:
    """Times of a step, once the exact route is known to be exact."""
    if busy:
        torch.set_num_threads(1)
    distance = from_plain(widths, side)
    if distance > 1e-10:
        raise SystemExit(f"the exact route is {distance:.1e} away from plain double backward")
    found = steps(widths, side, batch, seconds, time.process_time if busy else time.perf_counter)
    return [
        f"Batch {batch}, float32, least {'CPU' if busy else 'wall'} time over interleaved rounds"
        f"{', on a machine that was busy' if busy else ''}. In float64 the exact "
        f"route's gradients are {distance:.0e} away from those of plain double backward. "
        + (KEPT if "MALLOC_TRIM_THRESHOLD_" in os.environ else UNTOLD),
        "",
        *table(["step", "time", "over the mode's"], [row(k, found) for k in found]),
    ]


def errors_document(widths: Sequence[int], side: int) -> list[str]:
    """Errors over lengths of the step, and over parameters."""
    dtypes = (torch.float32, torch.float64)
    head = ["dtype", "step", "together", "median parameter", "worst parameter"]
    return [
        "Length of (gradient by difference - exact gradient) over that of the exact one, for "
        "steps ε v of several lengths relative to μ, batch 8: of all means together, and of single "
        "parameters. The default step is marked.",
        "",
        *table(head, [line for dtype in dtypes for line in errors(widths, side, dtype)]),
        "",
        "By parameter in float32 with the default step:",
        "",
        *table(["parameter", "error", "share of the gradient"], layers(widths, side)),
    ]


def smooth(widths: Sequence[int], dtype: torch.dtype = torch.float32) -> nn.Module:
    """The ResNet with softplus for ReLU, in training mode."""
    torch.manual_seed(0)
    model = resnet(widths, 2, 10)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.Softplus())
    return model.to(dtype).train()


def data(batch: int, side: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Images and labels."""
    torch.manual_seed(1)
    return torch.randn(batch, 3, side, side, dtype=dtype), torch.randint(10, (batch,))


class PlainDoubleBackward(lk.VariationalLaplace):
    """The same objective with torch's own second derivatives."""

    def _exact(self, batch: Batch) -> Tensor:
        f = self.outputs(batch)
        gradient = torch.autograd.grad(self._drawn(f, batch), self.means, create_graph=True)
        penalty = sum(
            ((2 * log_std).exp() * g.square()).sum()
            for log_std, g in zip(self.log_std, gradient, strict=True)
        )
        return self.likelihood.nll(f, batch.target) + 0.5 * penalty


def gradients(q: Objective, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of all parameters by name, with labels drawn from the same seed each time."""
    if isinstance(q, MeanField):
        q.generator = torch.Generator().manual_seed(2)
    found = torch.autograd.grad(q.loss(x, y), list(q.parameters()))
    return dict(zip((name for name, _ in q.named_parameters()), found, strict=True))


def from_plain(widths: Sequence[int], side: int) -> float:
    """Relative distance of the exact route's gradients from plain double backward, float64."""
    x, y = data(2, side, torch.float64)
    model = smooth(widths, torch.float64)
    plain, ours = (
        gradients(kind(model, "categorical", DATA_SIZE), x, y)
        for kind in (PlainDoubleBackward, lk.VariationalLaplace)
    )
    return _error(ours, plain, list(plain))


def steps(
    widths: Sequence[int], side: int, batch: int, seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """Least seconds of a step of each method, in interleaved rounds."""
    x, y = data(batch, side)
    kinds: dict[str, Callable[..., Objective]] = {
        "mode (MAP)": lk.MaximumAPosteriori,
        "variational inference, one draw": lk.VariationalInference,
        "plain double backward": PlainDoubleBackward,
        "exact route": lk.VariationalLaplace,
        "difference route": functools.partial(lk.VariationalLaplace, route="difference"),
    }
    objectives = {k: kind(smooth(widths), "categorical", DATA_SIZE) for k, kind in kinds.items()}
    calls = {name: _step(q, x, y, clock) for name, q in objectives.items()}
    found = {name: min(call(), call()) for name, call in calls.items()}
    gc.disable()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            found[name] = min(found[name], call())
    gc.enable()
    return found


def _step(q: Objective, x: Tensor, y: Tensor, clock: Callable[[], float]) -> Callable[[], float]:
    """A step that takes its own time."""
    optimizer = torch.optim.Adam(q.param_groups(1e-6))

    def call() -> float:
        start = clock()
        optimizer.zero_grad()
        q.loss(x, y).backward()
        optimizer.step()
        return clock() - start

    return call


def row(name: str, found: Mapping[str, float]) -> list[str]:
    """Time, and ratio to the mode's."""
    return [name, duration(found[name]), f"{found[name] / found['mode (MAP)']:.2f}"]


def errors(widths: Sequence[int], side: int, dtype: torch.dtype) -> list[list[str]]:
    """A line for each length of the step."""
    exact = _means(widths, side, dtype)
    default = 0.1 * torch.finfo(dtype).eps ** 0.5
    lines = []
    for relative in (*RELATIVE, default):
        difference = _means(widths, side, dtype, route="difference", step=relative)
        single = torch.tensor([_error(difference, exact, [name]) for name in exact])
        together = _error(difference, exact, list(exact))
        mark = " (default)" if relative == default else ""
        lines.append(
            [str(dtype).removeprefix("torch."), f"{relative:.1e}{mark}", f"{together:.1e}"]
            + [f"{value:.1e}" for value in (single.median().item(), single.max().item())]
        )
    return lines


def layers(widths: Sequence[int], side: int) -> list[list[str]]:
    """A line for each parameter with a σ, in float32 with the default step."""
    exact = _means(widths, side, torch.float32)
    difference = _means(widths, side, torch.float32, route="difference")
    length = _norm(exact.values())
    return [
        [name.removeprefix("model."), f"{_error(difference, exact, [name]):.1e}",
         f"{_norm([exact[name]]) / length:.1%}"]
        for name in exact
    ]  # fmt: skip


def _means(
    widths: Sequence[int], side: int, dtype: torch.dtype, **options: Any
) -> dict[str, Tensor]:
    """Gradients of the means."""
    q = lk.VariationalLaplace(smooth(widths, dtype), "categorical", DATA_SIZE, **options)
    found = gradients(q, *data(8, side, dtype))
    return {name: g for name, g in found.items() if name.startswith("model.")}


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([t.double().norm() for t in tensors]).norm())


def _error(found: Mapping[str, Tensor], truth: Mapping[str, Tensor], names: Sequence[str]) -> float:
    away = _norm([found[name] - truth[name] for name in names])
    return away / _norm([truth[name] for name in names])


if __name__ == "__main__":
    main()
