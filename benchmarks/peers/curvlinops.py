"""curvlinops: Kronecker factors; its current release has no diagonal."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks import limits
from benchmarks.models import kfac, kflr
from benchmarks.networks import Problem
from benchmarks.oracles import factored_layers, normalised
from benchmarks.peers.common import curvature_scale, flat_arguments, summed_loss


def _factors(problem: Problem, kind: str) -> list[Tensor]:
    from curvlinops import KFACLinearOperator  # pyright: ignore[reportMissingImports]

    layers = factored_layers(problem.model)
    operator = KFACLinearOperator(
        problem.model,
        summed_loss(problem),
        [p for layer in layers.values() for p in layer.parameters()],
        [(problem.x, problem.y)],
        check_deterministic=False,
        seed=int(torch.randint(2**31, ())),
        fisher_type=kind,
    )
    operator.compute_kronecker_factors()
    state = operator.state_dict()
    a, b = state["input_covariances"], state["gradient_covariances"]
    scale = curvature_scale(problem)
    return normalised([(a[name], scale * b[name]) for name in layers])


@kfac.method("curvlinops", "peer", setup=flat_arguments, requires="curvlinops")
def _(problem: Problem) -> list[Tensor]:
    return _factors(problem, "mc")


@kflr.method("curvlinops", "peer", setup=flat_arguments, requires="curvlinops", limit=limits.passes)
def _(problem: Problem) -> list[Tensor]:
    return _factors(problem, "type-2")
