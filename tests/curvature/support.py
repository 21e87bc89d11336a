"""What is supported, from a run: every method over every network of the zoo, against brute force.

`python -m tests.curvature.support docs/support.md` writes the table.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lapkernels as lk
from lapkernels.likelihoods import resolve
from tests.curvature import check, op_oracle, oracle
from tests.curvature.zoo import GROUPS, NO_SECOND_DERIVATIVE, ZOO, Network

TITLES = {
    "conv": "convolutions, 1d to 3d, all paddings",
    "transposed": "transposed convolutions",
    "linear": "linear, bilinear",
    "embedding": "embeddings, bags",
    "norm": "batch (eval), layer, group, instance, RMS norm",
    "prelu": "PReLU",
    "activation": "activations",
    "activation-image": "activations of images",
    "activation-last": "activations at the output",
    "function": "functions: arithmetic, `torch.where`, ...",
    "reduction": "sums, means, maxima, cumulative sums, sorting",
    "shape": "views, slices, concatenation, indexing, padding",
    "pool": "pooling",
    "resize": "resampling, upsampling, grid sampling",
    "rearrangement": "padding, shuffling, folding, flattening layers",
    "skip": "residual, dense and U-Net skips",
    "product": "gates, mixtures, several inputs",
    "control-flow": "Python control flow, samples in other places",
    "tied": "shared weights",
    "computed-weight": "computed weights: weight norm, low-rank adapters, ...",
    "bare-parameter": "parameters without a module",
    "attention": "attention",
    "transformer": "transformer layers, small transformers",
    "recurrent": "RNN, LSTM, GRU",
    "image-output": "images as output",
    "several-outputs": "one of several outputs",
    "sizes": "sizes that coincide, single samples",
    "state": "frozen parameters, memory formats, saturation",
}

# Reasons in messages, and the note of the table that explains each.
REASONS = {
    "expression of parameters": "a",
    "derivative.*not implemented|cannot be differentiated twice": "b",
    "cannot be followed|only autograd knows": "c",
    "no diagonal can be passed": "d",
}
NOTES = {
    "a": "a weight that is computed from parameters has no approximate diagonal: only the diagonal "
    "of M is known where it is made",
    "b": "torch has no second derivative of an op",
    "c": "no rule follows the samples, or autograd alone knows a gradient: `route='auto'`, the "
    "default, goes by autograd, if need be one sample at a time",
    "d": "a gradient of the user's own, or complex numbers, through which no diagonal is passed",
}
THRESHOLD = 7


@dataclass(frozen=True)
class Method:
    """A column of the table: how it is called, and brute force for it, if not op by op."""

    title: str
    options: dict[str, Any]
    truth: Callable[[check.Problem], list[dict[str, Tensor]]] | None = None


@cache
def _op_by_op(id: str, noise: str) -> list[dict[str, Tensor]]:
    """Approximate and mixed."""
    p = check.problem(ZOO[id], noise)
    return op_oracle.mixed_diagonals(p.model, p.x, p.y, p.loss, p.output, (0, THRESHOLD))


def _sampled(problem: check.Problem) -> list[dict[str, Tensor]]:
    """J^T s squared, for the very columns that the generator gives: together, or one by one."""
    j, f = oracle.flat_jacobians(problem.model, problem.x, problem.output)
    likelihood = resolve(problem.likelihood)
    found = []
    for rows in ([f], list(f.split(1))):
        generator = torch.Generator().manual_seed(0)
        s = torch.cat([likelihood.sampled_column(row, generator)[0] for row in rows])
        square = torch.einsum("ncp,nc->np", j, s.reshape(len(s), -1)).square().sum(0)
        found.append(oracle.diag(square.diag(), problem.model))
    return found


def _hessian(problem: check.Problem) -> list[dict[str, Tensor]]:
    matrix = oracle.hessian(problem.model, problem.x, problem.y, problem.loss, problem.output)
    return [oracle.diag(matrix, problem.model)]


METHODS = {
    "exact": Method("exact", {}, lambda p: [p.exact()]),
    "autograd": Method("by autograd", {"route": "autograd"}, lambda p: [p.exact()]),
    "rules": Method("by rules", {"route": "rules"}, lambda p: [p.exact()]),
    "mc": Method("mc", {"method": "mc"}, _sampled),
    "empirical": Method("empirical", {"method": "empirical"}, lambda p: [p.empirical()]),
    "approx": Method("approx", {"method": "approx"}),
    "mixed": Method("mixed", {"method": "mixed", "threshold": THRESHOLD}),
    "hessian": Method("Hessian", {"method": "hessian"}, _hessian),
}


@cache
def outcome(id: str, method: str, noise: str = "gaussian") -> str:
    """Either "right", "wrong", or the letter of the reason for a refusal."""
    problem = check.problem(ZOO[id], noise)
    generator = torch.Generator().manual_seed(0)
    column = METHODS[method]
    try:
        with check.quiet():
            found = lk.diag(
                problem.model,
                problem.data,
                problem.likelihood,
                output=problem.output,
                generator=generator,
                **column.options,
            )
    except Exception as error:
        found = next((k for words, k in REASONS.items() if re.search(words, str(error))), "?")
        refused = isinstance(error, lk.Refused | TypeError | ValueError) or found == "b"
        if found == "?":
            print(f"{id}, {method}: {type(error).__name__}: {error}", file=sys.stderr)
        return found if refused and found != "?" else "wrong"
    if method == "hessian" and id in NO_SECOND_DERIVATIVE:
        return "wrong"
    if column.truth:
        truths = column.truth(problem)
    else:
        truths = [_op_by_op(id, noise)[method == "mixed"]]
    error = min(check.error(found, true) for true in truths)
    # Two derivatives of brute force round more than one.
    return "right" if error <= (1e-8 if method == "hessian" else 1e-9) else "wrong"


def cell(networks: Iterable[Network], method: str, noise: str = "gaussian") -> str:
    """What the table says of some networks."""
    found = {network.id: outcome(network.id, method, noise) for network in networks}
    counts = Counter(found.values())
    parts = [f"{counts['right']}"] if counts["right"] else []
    parts += [f"{counts[note]} refused ({note})" for note in NOTES if counts[note]]
    if counts["wrong"]:
        parts.append("**wrong: " + ", ".join(k for k, v in found.items() if v == "wrong") + "**")
    return ", ".join(parts)


def group(name: str) -> list[Network]:
    return [network for network in ZOO.values() if network.group == name]


def family_row(name: str) -> list[str]:
    """The row of a family of layers."""
    networks = group(name)
    return [TITLES[name], str(len(networks)), *(cell(networks, method) for method in METHODS)]


# Networks for the table of likelihoods, by the shape of their output.
SHAPES = {
    "[N, C]": ("residual", "conv2d", "module-twice", "weight-norm", "squeeze-excite"),
    "[N, T, C]": (
        "linear-positions-out",
        "gated-mlp",
        "samples-second",
        "embedding-tied-to-linear",
    ),
    "[N, C, H, W]": ("image-to-image", "decoder", "autoencoder", "u-net"),
}
NOISES = {
    "gaussian": "Gaussian",
    "gaussian-variance-of-each-output": "Gaussian, a variance for each output",
    "categorical": "categorical",
    "bernoulli": "Bernoulli",
    "poisson": "Poisson",
}


def noise_row(noise: str, shape: str) -> list[str]:
    """The row of a likelihood and a shape of outputs."""
    networks = [ZOO[id] for id in SHAPES[shape]]
    fitting = [n for n in networks if check.problem(n, noise).noise.name == noise]
    cells = (cell(fitting, method, noise) for method in METHODS)
    return [f"{NOISES[noise]}, `{shape}`", str(len(fitting)), *cells]


def lines() -> Iterator[str]:
    """The document."""
    titles = [method.title for method in METHODS.values()]
    yield "# What is supported"
    yield ""
    yield "Written by `python -m tests.curvature.support docs/support.md`, from a run of `lk.diag`"
    yield f"on {len(ZOO)} small networks in float64. A number counts networks whose result equals"
    yield "brute force, dense Jacobians of single samples by autograd, to 1e-9 of each parameter's"
    yield "largest entry (1e-8 for the Hessian). All others are refused, with a letter for the"
    yield "reason. `mc` is held against the very columns it draws, `approx` and `mixed` (at a"
    yield f"threshold of {THRESHOLD} features) against dense Jacobians of every op."
    yield ""
    yield from _table(["layers", "networks", *titles], (family_row(name) for name in GROUPS))
    yield ""
    yield from (f"- ({letter}) {note}." for letter, note in NOTES.items())
    yield ""
    yield "## Likelihoods"
    yield ""
    rows = (noise_row(noise, shape) for noise in NOISES for shape in SHAPES)
    yield from _table(["likelihood, output", "networks", *titles], rows)


def _table(header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|---" * len(header) + "|"
    for row in rows:
        print(row[0], file=sys.stderr)
        yield "| " + " | ".join(row) + " |"


def main(path: str) -> None:
    torch.set_num_threads(1)
    Path(path).write_text("\n".join(lines()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
