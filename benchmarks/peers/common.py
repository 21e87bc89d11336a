"""What the packages' conventions have in common."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from benchmarks.networks import Problem


def flat(problem: Problem) -> Problem:
    """A copy of the problem with one dimension for outputs."""
    model = copy.deepcopy(problem.model)
    y = problem.y
    if y.ndim > 2:
        layers = model if isinstance(model, nn.Sequential) else [model]
        model, y = nn.Sequential(*layers, nn.Flatten()), y.flatten(1)
    return Problem(model, problem.x, y, problem.likelihood, problem.variance)


def summed_loss(problem: Problem) -> Any:
    kind = nn.CrossEntropyLoss if problem.likelihood == "categorical" else nn.MSELoss
    return kind(reduction="sum")


def task(problem: Problem) -> Any:
    return "classification" if problem.likelihood == "categorical" else "regression"


def curvature_scale(problem: Problem) -> float:
    """Half of MSELoss is the Gaussian's negative log-likelihood."""
    return 1.0 if problem.likelihood == "categorical" else 0.5


def split(vector: Tensor, problem: Problem) -> list[Tensor]:
    """A vector of all parameters as tensors of their shapes."""
    parameters = list(problem.model.parameters())
    parts = vector.split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


def flat_arguments(problem: Problem) -> tuple[Problem]:
    return (flat(problem),)
