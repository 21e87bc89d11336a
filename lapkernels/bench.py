"""`python -m lapkernels bench`: time and peak memory of curvature on this machine.

Every quantity in units of one forward and backward pass of the same network and batch, the minimum
over interleaved rounds. Peak memory is that of one call, above what the process holds before it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from lapkernels.curvature import diag, kron, predictive_variance
from lapkernels.curvature.data.random_state import seeded
from lapkernels.demo.memory import peak_extra_memory


@dataclass(frozen=True)
class Row:
    """A quantity's row: seconds of a call, the same in passes, and peak extra bytes."""

    quantity: str
    seconds: float
    passes: float
    peak_bytes: int | None


def dense(batch: int) -> tuple[nn.Module, Tensor]:
    """A perceptron 784-256-256-10."""
    model = nn.Sequential(
        *(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()), nn.Linear(256, 10)
    )
    return model, torch.randn(batch, 784)


def convolutional(batch: int) -> tuple[nn.Module, Tensor]:
    """Three convolutions with pooling and a linear layer, for images of 32 x 32 in colour."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 10)),
    )
    return model, torch.randn(batch, 3, 32, 32)


NETWORKS: dict[str, Callable[[int], tuple[nn.Module, Tensor]]] = {
    "conv": convolutional,
    "dense": dense,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m lapkernels bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--network", choices=NETWORKS, default="conv")
    parser.add_argument("--batch", type=_positive, default=16, help="samples (default: 16)")
    parser.add_argument("--rounds", type=_positive, default=10, help="calls of each (default: 10)")
    parser.add_argument("--threads", type=_positive, help="threads of torch (default: its own)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(arguments.threads or threads)
    try:
        with seeded(0):
            model, x = NETWORKS[arguments.network](arguments.batch)
            y = torch.randint(10, (arguments.batch,))
            rows = measure(quantities(model.eval(), x, y), arguments.rounds)
            used = torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)
    if arguments.json:
        setting = {"network": arguments.network, "batch": arguments.batch, "threads": used}
        print(json.dumps({**setting, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(f"{arguments.network}, batch of {arguments.batch}, {used} threads")
        print("\n".join(table(rows)))


def quantities(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable[[], object]]:
    """The calls that are measured; the first is the unit of the others."""
    parameters = list(model.parameters())
    variance = {name: torch.ones_like(p) for name, p in model.named_parameters()}

    def gradient() -> object:
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        return torch.autograd.grad(loss, parameters)

    return {
        "forward and backward": gradient,
        "diag exact": lambda: diag(model, (x, y), "categorical", "exact"),
        "diag mc": lambda: diag(model, (x, y), "categorical", "mc"),
        "diag approx": lambda: diag(model, (x, y), "categorical", "approx"),
        "kron mc": lambda: kron(model, (x, y), "categorical", "mc"),
        "kron exact": lambda: kron(model, (x, y), "categorical", "exact"),
        "predictive variance": lambda: predictive_variance(model, x, variance),
    }


def measure(calls: Mapping[str, Callable[[], object]], rounds: int) -> list[Row]:
    """Time and memory of all calls, after a warm-up."""
    peaks: dict[str, int | None] = {}
    for name, call in calls.items():
        call()
        peaks[name] = peak_extra_memory(call)[1]
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    unit = next(iter(seconds.values()))
    return [Row(name, seconds[name], seconds[name] / unit, peaks[name]) for name in calls]


def table(rows: Sequence[Row]) -> list[str]:
    """The rows in aligned columns."""
    lines = [("quantity", "time", "passes", "peak memory")]
    for row in rows:
        memory = "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f} MB"
        lines.append((row.quantity, f"{1e3 * row.seconds:.2f} ms", f"{row.passes:.2f}", memory))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        f"{line[0]:<{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
        for line in lines
    ]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: a positive number is needed")
    return number
