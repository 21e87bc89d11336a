"""laplace-torch with its default backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks import limits
from benchmarks.models import diag_empirical, diag_exact, diag_mc, predictive_variance
from benchmarks.networks import Problem
from benchmarks.peers.common import curvature_scale, flat, flat_arguments, split, task


def _diagonal(problem: Problem, backend: str, **options: Any) -> list[Tensor]:
    from laplace import curvature  # pyright: ignore[reportMissingImports]

    made = getattr(curvature, backend)(problem.model, task(problem), **options)
    return split(made.diag(problem.x, problem.y)[1], problem)


@diag_exact.method(
    "laplace-torch", "peer", setup=flat_arguments, requires="laplace", limit=limits.jacobian
)
def _(problem: Problem) -> list[Tensor]:
    return _diagonal(problem, "CurvlinopsGGN")


@diag_mc.method(
    "laplace-torch", "peer", setup=flat_arguments, requires="laplace", limit=limits.jacobian
)
def _(problem: Problem) -> list[Tensor]:
    return _diagonal(problem, "CurvlinopsGGN", stochastic=True)


@diag_empirical.method("laplace-torch", "peer", setup=flat_arguments, requires="laplace")
def _(problem: Problem) -> list[Tensor]:
    # It multiplies by its loss's factor of one half once, where the squared gradient has it twice.
    scale = curvature_scale(problem)
    return [scale * d for d in _diagonal(problem, "CurvlinopsEF")]


def _posterior(problem: Problem) -> tuple[Any, ...]:
    """A fitted diagonal posterior that has the problem's variance."""
    from laplace import DiagLaplace  # pyright: ignore[reportMissingImports]

    variance = torch.cat([v.flatten() for v in problem.variance.values()])
    posterior = DiagLaplace(flat(problem).model, task(problem), prior_precision=0.0)
    posterior.H = 1 / variance
    return posterior, problem.x, problem.y


@predictive_variance.method(
    "laplace-torch", "peer", setup=_posterior, requires="laplace", limit=limits.jacobian
)
def _(posterior: Any, x: Tensor, y: Tensor) -> Tensor:
    jacobians, _ = posterior.backend.jacobians(x)
    variance = posterior.functional_variance(jacobians).diagonal(dim1=1, dim2=2)
    return variance.reshape(y.shape) if y.ndim > 1 else variance
