"""Laplace posteriors from data to predictions: fit on a batch, then predict its variances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import lapkernels as lk
from benchmarks import oracles
from benchmarks.models import family
from benchmarks.networks import CLASSIFIERS, Problem, tiny

PRIOR = 1.0
# The three convolutions and three dense layers.
SIZES = CLASSIFIERS[:1]


def _diagonal(problem: Problem) -> Tensor:
    """Variances [N, C] under 1 / (h + prior)."""
    variance = {name: 1 / (h + PRIOR) for name, h in oracles.diagonal(problem).items()}
    return oracles.predictive_variance(
        Problem(problem.model, problem.x, problem.y, problem.likelihood, variance)
    )


def _kronecker(problem: Problem) -> Tensor:
    return oracles.kronecker_predictive_variance(problem, PRIOR)


laplace_diag = family("laplace_diag", SIZES, tiny(SIZES[0]), _diagonal, checked=tiny)
laplace_kron = family("laplace_kron", SIZES, tiny(SIZES[0]), _kronecker, checked=tiny)


def _ours(problem: Problem, structure: str) -> Tensor:
    la = lk.Laplace(problem.model, problem.likelihood, structure, "exact", prior=PRIOR)
    return la.fit((problem.x, problem.y)).predict(problem.x).variance


@laplace_diag.method("lapkernels", "ours")
def _(problem: Problem) -> Tensor:
    return _ours(problem, "diag")


@laplace_kron.method("lapkernels", "ours")
def _(problem: Problem) -> Tensor:
    return _ours(problem, "kron")


def _theirs(problem: Problem, structure: str) -> Tensor:
    from laplace import Laplace  # pyright: ignore[reportMissingImports]
    from torch.utils.data import DataLoader, TensorDataset

    la: Any = Laplace(problem.model, "classification", "all", structure, prior_precision=PRIOR)
    la.fit(DataLoader(TensorDataset(problem.x, problem.y), batch_size=len(problem.x)))
    _, covariance = la._glm_predictive_distribution(problem.x)
    return torch.diagonal(covariance, dim1=1, dim2=2).detach()


@laplace_diag.method("laplace-torch", "peer", requires="laplace")
def _(problem: Problem) -> Tensor:
    return _theirs(problem, "diag")


@laplace_kron.method("laplace-torch", "peer", requires="laplace")
def _(problem: Problem) -> Tensor:
    return _theirs(problem, "kron")
