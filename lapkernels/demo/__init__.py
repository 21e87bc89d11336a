"""`python -m lapkernels demo`: curvature and predictive uncertainty of a small autoencoder.

Trains a convolutional autoencoder on digits, computes the diagonal of its generalised Gauss-Newton
matrix by three methods, compares each with autograd, and draws its uncertainty about new images.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from lapkernels.curvature import diag, predictive_variance
from lapkernels.curvature.data.random_state import seeded
from lapkernels.demo import data, model, picture
from lapkernels.demo.memory import peak_extra_memory
from lapkernels.likelihoods import Gaussian

Diagonal = Mapping[str, Tensor]

# Up to this many outputs an image is small: the posterior is fitted from all columns, not from
# random ones, on one thread, as synchronising a second would cost more than it saves.
SMALL = 100


@dataclass(frozen=True)
class Row:
    """A method's line in the comparison; the error is that of its worst parameter tensor."""

    method: str
    seconds: float
    peak_bytes: int | None
    error: float


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of the demo."""
    parser = argparse.ArgumentParser(prog="python -m lapkernels demo", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="an .npz with uint8 images x_train and x_test, like MNIST's"
    )
    parser.add_argument("--out", type=Path, default=Path("lapkernels-demo"), help="output folder")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--images", type=int, default=2000, help="most training images used")
    parser.add_argument(
        "--batch", type=int, help="images in the comparison (default: 4, or 1 if they are large)"
    )
    parser.add_argument("--prior-precision", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON, and the tour to stderr"
    )
    arguments = parser.parse_args(argv)
    with seeded(arguments.seed):
        images, source = data.load(arguments.data)
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if images.train[0].numel() <= SMALL else threads)
        try:
            with redirect_stdout(sys.stderr) if arguments.json else nullcontext():
                rows = run(arguments, images, source)
        finally:
            torch.set_num_threads(threads)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))


def run(arguments: argparse.Namespace, images: data.Images, source: str) -> list[Row]:
    """The demo itself: train, compare, predict, draw. The rows of the comparison."""
    train, test = images.train[: arguments.images], images.test
    print(f"{len(train)} training images of {train.shape[-2]}x{train.shape[-1]}: {source}")
    autoencoder = model.autoencoder(train.shape[-2:])
    noise = model.train(autoencoder, train, arguments.epochs)
    count = sum(p.numel() for p in autoencoder.parameters())
    print(f"autoencoder with {count} parameters, residual standard deviation {noise**0.5:.3f}\n")

    small = train[0].numel() <= SMALL
    batch = arguments.batch or (4 if small else 1)
    rows = compare(autoencoder, train[:batch])
    print("diagonal GGN, Gaussian likelihood, batch of", batch)
    print("\n".join(table(rows)))
    print("approx and mc are estimates: their error is that of the method, not of rounding.\n")

    method = "exact" if small else "mc"
    start = time.perf_counter()
    curvature = diag(autoencoder, train.split(128), Gaussian(noise), method, samples=8)
    variance = {name: 1 / (d + arguments.prior_precision) for name, d in curvature.items()}
    print(f"posterior from all training images ({method}): {time.perf_counter() - start:.1f} s")
    examples = data.examples(test)
    start = time.perf_counter()
    shown = torch.cat([group for _, group in examples])
    with torch.no_grad():
        mean = autoencoder(shown)
        deviation = predictive_variance(autoencoder, shown, variance).sqrt()
    print(f"predictive variance of {len(shown)} images: {time.perf_counter() - start:.2f} s")
    first = 0
    for name, group in examples:
        part = slice(first, first + len(group))
        residual = (mean[part] - group).square().mean().sqrt()
        print(f"  {name:<20} mean std {deviation[part].mean():.4f}, residual {residual:.4f}")
        first += len(group)

    arguments.out.mkdir(parents=True, exist_ok=True)
    results = arguments.out / "results.json"
    results.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    print(f"\nwrote {results}")
    drawn = picture.draw(examples, mean, deviation, arguments.out / "uncertainty.png")
    print(f"wrote {drawn}" if drawn else "no picture: matplotlib is not installed")
    return rows


def compare(autoencoder: torch.nn.Sequential, x: Tensor) -> list[Row]:
    """Time, peak extra memory and error of each method, against autograd in float64."""
    double = copy.deepcopy(autoencoder).double()
    methods: dict[str, Callable[[Tensor], Diagonal]] = {
        "autograd, float64": lambda x: by_autograd(double, x.double()),
        "approx": lambda x: diag(autoencoder, x, method="approx"),
        "exact": lambda x: diag(autoencoder, x, method="exact"),
        "mc, 8 columns": lambda x: diag(autoencoder, x, method="mc", samples=8),
    }
    oracle: Diagonal = {}
    rows: list[Row] = []
    for name, method in methods.items():
        method(x[:1])  # The first call loads code and starts threads.
        (diagonal, seconds), peak = peak_extra_memory(lambda run=method: timed(run, x))
        oracle = oracle or diagonal
        error = max(
            float((d - oracle[key]).norm() / oracle[key].norm()) for key, d in diagonal.items()
        )
        rows.append(Row(name, seconds, peak, error))
    return rows


def by_autograd(model: torch.nn.Module, x: Tensor) -> Diagonal:
    """The exact diagonal from one backward pass for every sample and output."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for sample in x:
        for output in model(sample.unsqueeze(0)).flatten():
            grads = torch.autograd.grad(output, list(parameters.values()), retain_graph=True)
            for name, grad in zip(total, grads, strict=True):
                total[name] += grad.square()
    return total


def timed(method: Callable[[Tensor], Diagonal], x: Tensor) -> tuple[Diagonal, float]:
    """A method's result and the seconds it took."""
    start = time.perf_counter()
    return method(x), time.perf_counter() - start


def table(rows: Sequence[Row]) -> list[str]:
    """The comparison in aligned columns."""
    lines = [("method", "time", "peak memory", "relative error")]
    for row in rows:
        memory = "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f} MB"
        error = f"{row.error:.1e}" if row.error else "-"
        lines.append((row.method, f"{1e3 * row.seconds:.1f} ms", memory, error))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        f"{line[0]:<{widths[0]}}  "
        + "  ".join(f"{c:>{w}}" for c, w in zip(line[1:], widths[1:], strict=True))
        for line in lines
    ]
