"""BackPACK."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from benchmarks import limits
from benchmarks.models import diag_empirical, diag_exact, diag_mc, kfac, kflr
from benchmarks.networks import Problem
from benchmarks.oracles import factored_layers, kronecker_factors_of_sums, normalised
from benchmarks.peers.common import curvature_scale, flat, summed_loss


def _extend(problem: Problem) -> tuple[Any, ...]:
    """The flat problem, its extended model, which may list parameters otherwise, and the loss."""
    from backpack import extend  # pyright: ignore[reportMissingImports]

    problem = flat(problem)
    # Networks with a forward of their own go through its converter.
    plain = all(type(m).__module__.startswith("torch.nn") for m in problem.model.modules())
    return problem, extend(problem.model, use_converter=not plain), extend(summed_loss(problem))


def _run(problem: Problem, model: nn.Module, loss: nn.Module, extension: str) -> str:
    """The attribute of parameters that has the result."""
    from backpack import backpack, extensions  # pyright: ignore[reportMissingImports]

    rule = getattr(extensions, extension)()
    model.zero_grad()
    with backpack(rule):
        loss(model(problem.x), problem.y).backward()
    return rule.savefield


def _diagonal(
    problem: Problem, model: nn.Module, loss: nn.Module, extension: str, scale: float
) -> list[Tensor]:
    field = _run(problem, model, loss, extension)
    return [scale * vars(p)[field] for p in problem.model.parameters()]


@diag_exact.method("BackPACK", "peer", setup=_extend, requires="backpack", limit=limits.columns)
def _(problem: Problem, model: nn.Module, loss: nn.Module) -> list[Tensor]:
    return _diagonal(problem, model, loss, "DiagGGNExact", curvature_scale(problem))


@diag_mc.method("BackPACK", "peer", setup=_extend, requires="backpack")
def _(problem: Problem, model: nn.Module, loss: nn.Module) -> list[Tensor]:
    return _diagonal(problem, model, loss, "DiagGGNMC", curvature_scale(problem))


@diag_empirical.method("BackPACK", "peer", setup=_extend, requires="backpack")
def _(problem: Problem, model: nn.Module, loss: nn.Module) -> list[Tensor]:
    scale = curvature_scale(problem) ** 2
    return _diagonal(problem, model, loss, "SumGradSquared", scale)


def _factors(problem: Problem, model: nn.Module, loss: nn.Module, extension: str) -> list[Tensor]:
    field = _run(problem, model, loss, extension)
    scale = curvature_scale(problem)
    found = [vars(layer.weight)[field] for layer in factored_layers(problem.model).values()]
    return normalised([(a, scale * b) for b, a in found])


# Its factor of a convolution is of columns summed over positions: another definition, on purpose.
@kfac.method(
    "BackPACK", "peer", setup=_extend, requires="backpack", oracle=kronecker_factors_of_sums
)
def _(problem: Problem, model: nn.Module, loss: nn.Module) -> list[Tensor]:
    return _factors(problem, model, loss, "KFAC")


@kflr.method(
    "BackPACK",
    "peer",
    setup=_extend,
    requires="backpack",
    limit=limits.columns,
    oracle=kronecker_factors_of_sums,
)
def _(problem: Problem, model: nn.Module, loss: nn.Module) -> list[Tensor]:
    return _factors(problem, model, loss, "KFLR")
