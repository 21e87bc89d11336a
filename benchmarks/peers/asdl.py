"""ASDL (asdfghjkl on the package index)."""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks import limits
from benchmarks.models import diag_empirical, diag_exact, diag_mc, kfac, kflr
from benchmarks.networks import Problem
from benchmarks.oracles import factored_layers, normalised
from benchmarks.peers.common import curvature_scale, flat_arguments, summed_loss


def _fisher(problem: Problem, kind: str, shape: str) -> nn.Module:
    """The network with what ASDL leaves on its modules."""
    from asdl import FisherConfig, get_fisher_maker  # pyright: ignore[reportMissingImports]

    loss_type = "cross_entropy" if problem.likelihood == "categorical" else "mse"
    config = FisherConfig(fisher_type=kind, fisher_shapes=[shape], loss_type=loss_type, data_size=1)
    maker = get_fisher_maker(problem.model, config)
    output = maker.setup_model_call(problem.model, problem.x)
    maker.setup_loss_call(summed_loss(problem), output, problem.y)
    maker.forward_and_backward()
    return problem.model


def _diagonal(problem: Problem, kind: str) -> list[Tensor]:
    model = _fisher(problem, kind, "diag")
    found: list[Tensor] = []
    for name, _ in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        fisher = getattr(model.get_submodule(path), "fisher", None)
        if fisher is None:
            raise NotImplementedError(f"no result for {name}")
        found.append(getattr(fisher.diag, leaf))
    return found


@diag_exact.method("ASDL", "peer", setup=flat_arguments, requires="asdl", limit=limits.passes)
def _(problem: Problem) -> list[Tensor]:
    return _diagonal(problem, "fisher_exact")


@diag_mc.method("ASDL", "peer", setup=flat_arguments, requires="asdl")
def _(problem: Problem) -> list[Tensor]:
    return _diagonal(problem, "fisher_mc")


@diag_empirical.method("ASDL", "peer", setup=flat_arguments, requires="asdl")
def _(problem: Problem) -> list[Tensor]:
    scale = curvature_scale(problem) ** 2
    return [scale * d for d in _diagonal(problem, "fisher_emp")]


def _factors(problem: Problem, kind: str) -> list[Tensor]:
    model = _fisher(problem, kind, "kron")
    samples = len(problem.x)
    pairs = []
    for layer in factored_layers(model).values():
        found = vars(layer)["fisher"].kron
        pairs.append((found.A / samples, found.B))
    return normalised(pairs)


@kfac.method("ASDL", "peer", setup=flat_arguments, requires="asdl")
def _(problem: Problem) -> list[Tensor]:
    return _factors(problem, "fisher_mc")


@kflr.method("ASDL", "peer", setup=flat_arguments, requires="asdl", limit=limits.passes)
def _(problem: Problem) -> list[Tensor]:
    return _factors(problem, "fisher_exact")
