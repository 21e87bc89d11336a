"""Whole networks: quantities of the curvature, in units of one forward and backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import lapkernels as lk
from benchmarks import oracles
from benchmarks.networks import (
    AUTOENCODERS,
    CLASSIFIERS,
    FIVE_CONVS,
    UNETS,
    NetworkSize,
    Problem,
    checked,
    make,
    tiny,
)
from benchmarks.registry import Family, Function, register

# Relative to a tensor's largest entry; float32 sums of many terms.
TOLERANCE = 1e-3
# Enough for a factor of two to be many standard errors away from one.
DRAWS = 60

CLASSIFIER, IMAGES = tiny(CLASSIFIERS[0]), tiny(FIVE_CONVS[0])
EVERY = [*CLASSIFIERS, *AUTOENCODERS, *UNETS, *FIVE_CONVS]
# Layers in sequence, which the approximation's plain compositions can follow.
SEQUENCES = [size for size in EVERY if size.network not in ("resnet", "transformer", "unet")]


def family(
    name: str, sizes: list[NetworkSize], quick: NetworkSize, oracle: Function, **options: Any
) -> Family:
    """A family in units of one forward and backward pass."""
    made = register(Family(name, sizes, quick, make, oracle, TOLERANCE, **options))
    made.method("forward and backward", "unit")(forward_and_backward)
    return made


def forward_and_backward(problem: Problem) -> list[Tensor]:
    """The gradient of the loss in every parameter."""
    output = problem.model(problem.x)
    loss = oracles.negative_log_likelihood(output, problem.y, problem.likelihood)
    return list(torch.autograd.grad(loss, list(problem.model.parameters())))


diag_exact = family("diag_exact", EVERY, CLASSIFIER, oracles.diagonal, checked=checked)
diag_mc = family("diag_mc", EVERY, CLASSIFIER, oracles.diagonal, checked=tiny, draws=DRAWS)
diag_approx = family("diag_approx", SEQUENCES, IMAGES, oracles.approximate_diagonal)
gradient_and_diag_approx = family(
    "gradient_and_diag_approx", SEQUENCES, IMAGES, oracles.gradient_and_approximate_diagonal
)
diag_empirical = family(
    "diag_empirical", EVERY, CLASSIFIER, oracles.empirical_diagonal, checked=checked
)
kfac = family("kfac", EVERY, CLASSIFIER, oracles.kronecker_factors, checked=tiny, draws=DRAWS)
kflr = family("kflr", EVERY, CLASSIFIER, oracles.kronecker_factors, checked=checked)
predictive_variance = family(
    "predictive_variance", EVERY, CLASSIFIER, oracles.predictive_variance, checked=checked
)


def _in_order(problem: Problem, values: Any) -> list[Tensor]:
    """The tensors of all parameters, by name: one that is missing raises."""
    return [values[name] for name, _ in problem.model.named_parameters()]


def _diag(problem: Problem, method: Any, data: Any) -> list[Tensor]:
    values = lk.diag(problem.model, data, likelihood=problem.likelihood, method=method)
    return _in_order(problem, values)


@diag_exact.method("lapkernels", "ours")
def _(problem: Problem) -> list[Tensor]:
    return _diag(problem, "exact", problem.x)


@diag_mc.method("lapkernels", "ours")
def _(problem: Problem) -> list[Tensor]:
    return _diag(problem, "mc", problem.x)


@diag_approx.method("lapkernels", "ours")
def _(problem: Problem) -> list[Tensor]:
    return _diag(problem, "approx", problem.x)


@gradient_and_diag_approx.method("lapkernels", "ours")
def _(problem: Problem) -> list[Tensor]:
    data = (problem.x, problem.y)
    found = lk.gradient_and_diag(problem.model, data, problem.likelihood, method="approx")
    return [*_in_order(problem, found.gradient), *_in_order(problem, found.diagonal)]


@diag_empirical.method("lapkernels", "ours")
def _(problem: Problem) -> list[Tensor]:
    return _diag(problem, "empirical", (problem.x, problem.y))


@predictive_variance.method("lapkernels", "ours")
def _(problem: Problem) -> Tensor:
    return lk.predictive_variance(problem.model, problem.x, problem.variance)


def _factors(problem: Problem, method: Any) -> list[Tensor]:
    """Factors of the layers that are compared; each has one group."""
    found = lk.kron(problem.model, problem.x, likelihood=problem.likelihood, method=method)
    pairs = []
    for name in oracles.factored_layers(problem.model):
        a, b = found[f"{name}.weight"].input, found[f"{name}.weight"].output
        assert a is not None
        pairs.append((a[0], b[0]))
    return oracles.normalised(pairs)


@kfac.method("lapkernels", "ours")
def _(problem: Problem) -> list[Tensor]:
    return _factors(problem, "mc")


@kflr.method("lapkernels", "ours")
def _(problem: Problem) -> list[Tensor]:
    return _factors(problem, "exact")
