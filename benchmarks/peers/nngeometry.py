"""nngeometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from benchmarks import limits
from benchmarks.models import diag_exact, diag_mc, kfac, kflr
from benchmarks.networks import Problem
from benchmarks.oracles import factored_layers, normalised
from benchmarks.peers.common import flat_arguments, split


def _loader(problem: Problem) -> Any:
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(problem.x, problem.y), batch_size=len(problem.x))


def _matrix(problem: Problem, representation: str, *, sampled: bool = False) -> Any:
    """A matrix, averaged over samples."""
    from nngeometry import metrics, object  # pyright: ignore[reportMissingImports]

    exact = "classif_logits" if problem.likelihood == "categorical" else "regression"
    make: Callable[..., Any] = metrics.FIM_MonteCarlo if sampled else metrics.FIM
    kind = getattr(object, representation)
    device = str(problem.x.device)
    return make(problem.model, _loader(problem), kind, variant=exact, device=device)


def _diagonal(problem: Problem, *, sampled: bool = False) -> list[Tensor]:
    matrix = _matrix(problem, "PMatDiag", sampled=sampled)
    return split(len(problem.x) * matrix.get_diag(), problem)


@diag_exact.method(
    "nngeometry", "peer", setup=flat_arguments, requires="nngeometry", limit=limits.passes
)
def _(problem: Problem) -> list[Tensor]:
    return _diagonal(problem)


@diag_mc.method("nngeometry", "peer", setup=flat_arguments, requires="nngeometry")
def _(problem: Problem) -> list[Tensor]:
    return _diagonal(problem, sampled=True)


def _factors(problem: Problem, *, sampled: bool = False) -> list[Tensor]:
    matrix = _matrix(problem, "PMatKFAC", sampled=sampled)
    pairs = []
    layers = factored_layers(problem.model).values()
    for layer, (a, b) in zip(layers, matrix.data.values(), strict=True):
        inputs = layer.weight[0].numel()
        pairs.append((a[:inputs, :inputs], len(problem.x) * b))
    return normalised(pairs)


@kfac.method("nngeometry", "peer", setup=flat_arguments, requires="nngeometry")
def _(problem: Problem) -> list[Tensor]:
    return _factors(problem, sampled=True)


@kflr.method("nngeometry", "peer", setup=flat_arguments, requires="nngeometry", limit=limits.passes)
def _(problem: Problem) -> list[Tensor]:
    return _factors(problem)
