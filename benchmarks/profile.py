"""Where the time goes: recording, and families of ops, against the machine's measured peaks.

python -m benchmarks.profile --out docs/measured/profiles.md
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

import lapkernels as lk
from benchmarks.document import table, write
from benchmarks.models import forward_and_backward
from benchmarks.networks import AUTOENCODERS, CLASSIFIERS, UNETS, NetworkSize, Problem, make
from benchmarks.report import duration
from lapkernels.curvature.passes.passes import passes

SIZES = [
    *(*CLASSIFIERS, *AUTOENCODERS, *UNETS, NetworkSize("conv5", 32, 1)),
    *(NetworkSize("conv5", resolution, 4) for resolution in (64, 128, 256)),
]
QUANTITIES: dict[str, Callable[[Problem], Any]] = {
    "diag exact": lambda p: lk.diag(p.model, p.x, p.likelihood, method="exact"),
    "diag mc": lambda p: lk.diag(p.model, p.x, p.likelihood, method="mc"),
    "diag approx": lambda p: lk.diag(p.model, p.x, p.likelihood, method="approx"),
    "gradient and diag approx": lambda p: lk.gradient_and_diag(p.model, (p.x, p.y), p.likelihood),
    "kron exact": lambda p: lk.kron(p.model, p.x, p.likelihood, method="exact"),
    "kron mc": lambda p: lk.kron(p.model, p.x, p.likelihood, method="mc"),
    "predictive variance": lambda p: lk.predictive_variance(p.model, p.x, p.variance),
}
# Outputs beyond which a column for each is left out.
MOST_OUTPUTS = 5000
# By family, how the names of its ops begin; the first that fits has the op.
FAMILIES = {
    "our kernels": ("lapkernels",),
    "products": ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addmv"),
    "convolutions": (
        *("aten::mkldnn_convolution", "aten::_convolution", "aten::convolution"),
        *("aten::conv", "aten::thnn", "aten::slow_conv"),
    ),
    "decompositions": ("aten::linalg", "aten::geqrf"),
    "entries": ("aten::",),
}


@dataclass(frozen=True)
class Family:
    """Seconds, floating point operations and bytes of all its ops, as far as they are known."""

    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/profiles.md"))
    parser.add_argument("--networks", nargs="*", help="names of sizes, all by default")
    parser.add_argument("--seconds", type=float, default=1.0, help="of calls for each time")
    arguments = parser.parse_args(argv)
    flops, copied = peaks()
    head = ["network", "time", "passes", "recording", "Python", *FAMILIES, "most"]
    head += ["products, GFLOP/s", "entries, GB/s"]
    parts = [
        f"Peaks, measured: {flops / 1e9:.0f} GFLOP/s of a matrix product of 1024³, "
        f"{copied / 1e9:.1f} GB/s of a copy (read and written). Passes are how many forward and "
        "backward passes the time is. Shares are of the time of a call; recording is the forward "
        "pass with its rules, and lies in the other shares too; the largest of those is named.",
        "",
    ]
    rows: dict[str, list[list[str]]] = {name: [] for name in QUANTITIES}
    for size in SIZES:
        if arguments.networks is None or str(size) in arguments.networks:
            for name, cells in network_rows(size, arguments.seconds).items():
                rows[name].append([str(size), *cells])
    for name, found in rows.items():
        parts += [f"## {name}", "", *table(head, found), ""]
    write(arguments.out, "Where the time goes", "python -m benchmarks.profile", parts)


def network_rows(size: NetworkSize, seconds: float) -> dict[str, list[str]]:
    """The cells of all quantities of a network."""
    (problem,) = make(size, torch.device("cpu"))
    unit = least(lambda: forward_and_backward(problem), seconds)
    recording = least(lambda: list(passes(problem.model, problem.x)[1]), seconds)
    return {
        name: row(problem, quantity, unit, recording, seconds)
        for name, quantity in QUANTITIES.items()
        if size.outputs <= MOST_OUTPUTS or name != "predictive variance"
    }


def row(
    problem: Problem,
    quantity: Callable[[Problem], Any],
    unit: float,
    recording: float,
    seconds: float,
) -> list[str]:
    """The time of a quantity and its shares."""
    whole = least(lambda: quantity(problem), seconds)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True) as found:
        start = time.perf_counter()
        quantity(problem)
        profiled = time.perf_counter() - start
    families = sums(found.events() or ())
    inside = sum(family.seconds for family in families.values())
    shares = [recording / whole, max(0.0, 1 - inside / profiled)]
    shares += [families[name].seconds / profiled for name in FAMILIES]
    # The profiler knows the work of products; of convolutions only that of some.
    rates = [_rate(families["products"], "flops"), _rate(families["entries"], "bytes")]
    cells = [duration(whole), f"{whole / unit:.2f}", *(f"{share:.0%}" for share in shares)]
    _, most = max(zip(shares[1:], ("Python", *FAMILIES), strict=True))
    return [*cells, most, *rates]


def sums(events: Sequence[FunctionEvent]) -> dict[str, Family]:
    """Ops by family: their own time, and what the profiler knows of their work."""
    found = dict.fromkeys(FAMILIES, Family())
    for event in events:
        name = next((k for k, starts in FAMILIES.items() if event.name.startswith(starts)), None)
        if name is not None:
            known = found[name]
            shapes: Any = event.input_shapes or ()
            moved = 4 * sum(prod(shape) for shape in shapes if shape)
            own = event.self_cpu_time_total / 1e6
            found[name] = Family(
                known.seconds + own, known.flops + (event.flops or 0), known.bytes + moved
            )
    return found


def _rate(family: Family, what: str) -> str:
    known = getattr(family, what)
    return f"{known / family.seconds / 1e9:.3g}" if known else ""


def peaks() -> tuple[float, float]:
    """Floating point operations and bytes a second."""
    a = torch.randn(1024, 1024)
    big = torch.randn(1 << 24)
    other = torch.empty_like(big)
    return 2 * 1024**3 / least(lambda: a @ a), 8 * big.numel() / least(lambda: other.copy_(big))


def least(call: Callable[[], Any], seconds: float = 1.0) -> float:
    """Least time of calls over about a second, three at least."""
    call()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
