"""Every structure's curvature as a dense matrix in float64, and Laplace formulas on it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import oracle
from tests.laplace.problems import Problem

# Name of a case, structure, its options.
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "diag": ("diag", {}),
    "kron": ("kron", {"method": "exact"}),
    "ekfac": ("ekfac", {"method": "exact"}),
    "layer": ("blocks", {"by": "layer"}),
    "parameter": ("blocks", {"by": "parameter"}),
    "neuron": ("blocks", {"by": "neuron"}),
    "kernel": ("blocks", {"by": "kernel"}),
    "full": ("full", {}),
    "low_rank": ("low_rank", {"rank": 10, "tolerance": 1e-12}),
    "function_space": ("function_space", {}),
}


def curvature(case: str, problem: Problem) -> Tensor:
    """H [P, P] of a structure."""
    h = problem.ggn()
    if case in ("kron", "ekfac"):
        run = lk.kron if case == "kron" else lk.kron_corrected
        found = run(problem.model, [(problem.x, problem.y)], problem.likelihood, "exact")
        return torch.block_diag(*(found.dense(name) for name in found))
    if case == "low_rank":
        values, vectors = torch.linalg.eigh(h)
        return (vectors[:, -10:] * values[-10:]) @ vectors[:, -10:].T
    if case in ("full", "function_space"):
        return h
    groups = torch.cat([g + 10_000 * k for k, g in enumerate(_groups(case, problem.model))])
    return h * (groups.unsqueeze(1) == groups)


def _groups(case: str, model: nn.Module) -> list[Tensor]:
    """For each parameter, a number for each entry: equal ones share a block."""
    found, layers = [], {}
    for k, (name, parameter) in enumerate(model.named_parameters()):
        entries = torch.arange(parameter.numel()).reshape(parameter.shape)
        if case == "diag" or (case in ("neuron", "kernel") and parameter.dim() == 1):
            ids = entries
        elif case == "parameter":
            ids = torch.zeros_like(entries)
        elif case == "layer":
            # Undoes the offset that tells parameters apart.
            first = layers.setdefault(name.rpartition(".")[0], k)
            ids = torch.full_like(entries, 10_000 * (first - k))
        else:
            transposed = isinstance(
                model.get_submodule(name.rpartition(".")[0]), nn.ConvTranspose2d
            )
            rows = torch.arange(parameter.shape[0]).reshape(-1, 1)
            columns = torch.arange(parameter.shape[1])
            neurons = (columns if transposed else rows).expand(parameter.shape[:2])
            ids = neurons if case == "neuron" else rows * parameter.shape[1] + columns
            ids = ids.reshape(*ids.shape, *(1,) * (parameter.dim() - 2)).expand(parameter.shape)
        found.append(ids.flatten())
    return found


def prior_diagonal(problem: Problem, values: dict[str, Tensor]) -> Tensor:
    """Λ's diagonal in the order of the parameters."""
    parts = oracle.trainable(problem.model).items()
    return torch.cat([values[name].expand(p.shape).flatten() for name, p in parts])


def log_evidence(problem: Problem, h: Tensor, prior: Tensor, variance: float = 1.0) -> Tensor:
    """log p(y|X) ≈ log p(y|X,θ) + log p(θ) + P/2 log 2π - ½ log|A|, written out."""
    theta, count = problem.theta, len(prior)
    fit = -problem.nll() / variance
    if problem.likelihood == "gaussian":
        fit -= 0.5 * problem.y.numel() * math.log(2 * math.pi * variance)
    log_prior = -0.5 * theta @ (prior * theta) + 0.5 * (prior / (2 * math.pi)).log().sum()
    a = h / variance + torch.diag(prior)
    return fit + log_prior + 0.5 * count * math.log(2 * math.pi) - 0.5 * torch.logdet(a)
