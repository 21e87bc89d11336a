"""The page docs/support.md: written from what is not simply right, and read back to that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from tests.curvature.truth import THRESHOLD, Truth
from tests.curvature.zoo import ZOO

PATH = Path(__file__).parents[2] / "docs" / "support.md"
COLUMNS = (
    *("exact", "by rules", "mc", "empirical", "approx", "mixed", "Hessian"),
    *("kron", "blocks", "neurons", "full", "low rank", "predictive", "propagated"),
)
FAMILIES = {
    "linear": "linear, bilinear",
    "conv": "convolutions, 1d to 3d, all paddings, groups",
    "transposed": "transposed convolutions",
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
NOISES = {
    "gaussian": "Gaussian",
    "gaussian-variance-of-each-output": "Gaussian, a variance for each output",
    "heteroscedastic": "heteroscedastic Gaussian",
    "categorical": "categorical",
    "categorical-weighted": "categorical with weights, smoothing, ignored labels",
    "bernoulli": "Bernoulli",
    "poisson": "Poisson",
    "loss": "a loss of one's own",
}
SHAPES = {1: "[N]", 2: "[N, C]", 3: "[N, T, C]", 4: "[N, C, H, W]"}


@dataclass(frozen=True)
class Reason:
    """Why something is refused: a pattern of the message, the reason, and what works."""

    message: str
    why: str
    instead: str


REASONS = {
    "b": Reason("derivative.*not implemented|cannot be differentiated twice",
        "torch has no second derivative of an op",
        "products with a Jacobian go by it too: everything else works"),
    "c": Reason("cannot be followed|only autograd knows",
        "no rule follows the samples, or autograd alone knows a gradient",
        "`route='auto'`, the default, goes by autograd there, if need be one sample at a time"),
    "d": Reason("no diagonal can be passed|no variance can be passed",
        "a gradient of the user's own, or complex numbers",
        "no diagonal passes them: `exact`, `mc` or `empirical`; `predictive_variance`"),
    "k": Reason("no Kronecker factors", "the parameter as it stands is no layer's weight",
        "it has no Kronecker factors: `blocks`"),
    "z": Reason("is not finite",
        "torch's second derivative is NaN where labels make a gradient zero",
        "class weights of zero do, for one: everything else works"),
    "n": Reason("neurons are not defined", "a weight has other neurons in another use",
        "`blocks` by layer, parameter or kernel"),
}  # fmt: skip
# Right in float64, and not to be judged in float32.
FLOAT64 = "float64"
# By network and column, what is not simply right: a key of `REASONS`, or `FLOAT64`.
Exceptions = dict[str, dict[str, str]]

INTRODUCTION = """\
Written by `python -m tests.curvature.support`, from a run of every curvature function and method
with {likelihoods} likelihoods on {networks} small networks. A number counts networks whose results
equal brute force, dense Jacobians of single samples by autograd in float64, **with every likelihood
that fits their outputs**: to 1e-10 of each parameter's largest entry in float64 and to 1e-5 in
float32, a few networks excepted that are listed at the end. All others raise an error, and a letter
says [why](#what-is-refused-and-why). A run that finds anything else writes no page.

- *exact* to *Hessian* are methods of `diag` and, up to *mixed*, of `gradient_and_diag`: *exact* by
  both routes, *by rules* with `route='rules'`, *mc* with both samplers. *Hessian* is `full` too.
- *kron* is `kron` and `kron_corrected`; *blocks* are `blocks` by layer, parameter and kernel,
  *neurons* those by neuron. Each of them, and `full`, with `exact`, `mc` and `empirical`.
- *low rank* is `low_rank` and `ggn_product`.
- *predictive* is `predictive_variance` and `predictive_covariance` of independent parameters by
  both routes, *propagated* is `propagated_variance`; they know no likelihood."""
COMPARISON = """\
- Networks and likelihoods take turns of options that need not be crossed with all others: the route
  of `mc` and `empirical` and of functions other than `diag`, expand and reduce, the grain of
  blocks, the methods of `gradient_and_diag`. float64 is always run, float32 with every other
  likelihood, so that every function and method is run in both on every network.
- `mc` is held against the very columns it draws, whose distribution has a test of its own;
  `approx`, `mixed` (at {threshold} features), `propagated_variance` and the layers of `kron`
  against dense Jacobians of every op that torch runs.
- A loss of one's own is no distribution: every `mc` refuses to draw labels from it; `diag` works
  with `sampler='signs'`.
- A categorical likelihood needs two classes, a heteroscedastic one an even number of outputs; other
  outputs raise."""
SINGLE = """\
On these networks float32 misses 1e-5, by no more than ten times the error that autograd itself has
there in float32, one sample at a time: numbers cancel. All are right in float64."""


def page(found: Exceptions) -> str:
    """The whole document."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Exceptions) -> Iterator[str]:
    yield "# What is supported"
    yield ""
    yield from INTRODUCTION.format(networks=len(ZOO), likelihoods=len(NOISES)).splitlines()
    yield ""
    families = ([FAMILIES[group], *_cells(ids, found)] for group, ids in _by_family().items())
    yield from _table(["layers", "networks", *COLUMNS], families)
    yield ""
    yield "## By likelihood and shape of the outputs"
    yield ""
    columns = COLUMNS[: COLUMNS.index("predictive")]
    by_noise = ([*names, *_cells(ids, found, columns)] for names, ids in _by_noise().items())
    yield from _table(["likelihood", "outputs", "networks", *columns], by_noise)
    yield ""
    yield "## What is refused, and why"
    yield ""
    yield from (f"- ({key}) {one.why}; {one.instead}." for key, one in REASONS.items())
    yield ""
    yield from _table(["network", "refused", "reason"], _rows(found, REASONS))
    yield ""
    yield "## How it was compared"
    yield ""
    yield from COMPARISON.format(threshold=THRESHOLD).splitlines()
    yield ""
    yield from SINGLE.splitlines()
    yield ""
    yield from _table(["network", "right in float64 alone"], _rows(found, [FLOAT64]))


def _table(header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|---" * len(header) + "|"
    yield from ("| " + " | ".join(row) + " |" for row in rows)


def _by_family() -> dict[str, list[str]]:
    return {group: [n.id for n in ZOO.values() if n.group == group] for group in FAMILIES}


@cache
def _by_noise() -> dict[tuple[str, str], list[str]]:
    """Networks by likelihood and shape of the outputs."""
    truths = [Truth(id) for id in ZOO]
    dims = [truth.problem("gaussian", torch.float32).f.dim() for truth in truths]
    found: dict[tuple[str, str], list[str]] = {}
    for noise, title in NOISES.items():
        for dim, shape in SHAPES.items():
            pairs = zip(truths, dims, strict=True)
            ids = [truth.network.id for truth, own in pairs if own == dim and truth.fits(noise)]
            if ids:
                found[title, f"`{shape}`"] = ids
    return found


def _cells(ids: list[str], found: Exceptions, columns: Iterable[str] = COLUMNS) -> list[str]:
    """How many networks, and for each column how many are right, and the reasons of the others."""
    cells = [str(len(ids))]
    for column in columns:
        counts = Counter(found[id].get(column, FLOAT64) for id in ids)
        parts = [str(counts.pop(FLOAT64))] if counts[FLOAT64] else []
        cells.append(", ".join(parts + [f"{counts[k]} ({k})" for k in REASONS if counts[k]]))
    return cells


def _rows(found: Exceptions, keys: Iterable[str]) -> Iterator[list[str]]:
    """A row for each network and reason."""
    for key in keys:
        for id in ZOO:
            columns = [column for column, value in found[id].items() if value == key]
            if columns:
                why = [] if key == FLOAT64 else [f"({key}) {REASONS[key].why}"]
                yield [f"`{id}`", ", ".join(columns), *why]


def written(text: str) -> Exceptions:
    """What a page was written from."""
    found: Exceptions = {id: {} for id in ZOO}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        id = cells[0].strip("`")
        if id in found:
            for column in cells[1].split(", "):
                found[id][column] = cells[2][1] if len(cells) == 3 else FLOAT64
    return {id: {c: own[c] for c in COLUMNS if c in own} for id, own in found.items()}
