"""What Laplacian autoencoders need: the mixed diagonal, blocks to compare with, and whole steps."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

import lapkernels as lk
from benchmarks import oracles
from benchmarks.models import IMAGES, TOLERANCE, family
from benchmarks.networks import FIVE_CONVS, STEPS, Problem, make, tiny
from benchmarks.registry import Family, register

# Features of a value up to which the mixed diagonal is exact: what LaplacianAutoencoder takes.
THRESHOLD = 64
# Layers of the encoder, in the autoencoders that are a sequence of layers.
ENCODER = 12
SEED = 0


def _mixed(problem: Problem) -> dict[str, Tensor]:
    return oracles.mixed_diagonal(problem, THRESHOLD)


diag_mixed = family("diag_mixed", FIVE_CONVS, tiny(STEPS[0]), _mixed, checked=tiny)
blocks = family(
    "blocks", [size for size in FIVE_CONVS if size.samples == 1][:2], IMAGES, oracles.blocks,
    checked=tiny,
)  # fmt: skip


@diag_mixed.method("lapkernels", "ours")
def _(problem: Problem) -> dict[str, Tensor]:
    found = lk.diag(
        problem.model, problem.x, problem.likelihood, method="mixed", threshold=THRESHOLD
    )
    return dict(found)


@blocks.method("lapkernels", "ours")
def _(problem: Problem) -> dict[str, Tensor]:
    return dict(lk.blocks(problem.model, problem.x, problem.likelihood))


def _step_oracle(problem: Problem) -> dict[str, Tensor]:
    """The precision after the first step, (1 - α) + d at the weights drawn from N(θ, 1)."""
    generator = torch.Generator(problem.x.device).manual_seed(SEED)
    model = copy.deepcopy(problem.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator, device=parameter.device)
    drawn = Problem(model, problem.x, problem.x, "gaussian", {})
    return {name: 1 - 1e-4 + d for name, d in _mixed(drawn).items()}


online_step: Family = register(
    Family("online_step", STEPS, tiny(STEPS[0]), make, _step_oracle, TOLERANCE, checked=tiny)
)


def _plain(problem: Problem) -> tuple[Any, ...]:
    model = copy.deepcopy(problem.model)
    return model, torch.optim.Adam(model.parameters(), 1e-3), problem.x


@online_step.method("plain step", "unit", setup=_plain)
def _(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    (0.5 * (model(x) - x).square().sum() / len(x)).backward()
    optimizer.step()


def _laplacian(problem: Problem) -> tuple[Any, ...]:
    model = cast(nn.Sequential, copy.deepcopy(problem.model))
    return lk.LaplacianAutoencoder(
        model[:ENCODER], model[ENCODER:], update="online", seed=SEED
    ), problem.x


@online_step.method("lapkernels", "ours", setup=_laplacian)
def _(model: lk.LaplacianAutoencoder, x: Tensor) -> dict[str, Tensor]:
    model.step(x)
    return {_joint(name): value for name, value in model.precision.items()}


def _joint(name: str) -> str:
    """A parameter's name in the whole sequence."""
    part, index, kind = name.split(".")
    return f"{int(index) + (ENCODER if part == 'decoder' else 0)}.{kind}"
