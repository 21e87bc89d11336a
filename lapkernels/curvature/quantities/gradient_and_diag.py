"""Loss, gradient and diagonal of a batch from one forward pass, for training."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.diagonal import passes_both, pull_diagonal
from lapkernels.curvature.data.autocast import for_models_alone
from lapkernels.curvature.data.batches import Output
from lapkernels.curvature.data.contents import Parameters
from lapkernels.curvature.data.processes import summed
from lapkernels.curvature.passes.passes import Pass, Route
from lapkernels.curvature.quantities.diag import Method, SquaredSum, add_diagonal, check_method
from lapkernels.curvature.quantities.loop import Loop, OutputFactor, Sampler, with_labels
from lapkernels.curvature.recording.graph import Graph
from lapkernels.curvature.results.summary import Diagonal, finite
from lapkernels.likelihoods import resolve
from lapkernels.ops.base.checks import gathered


class GradientAndDiagonal(NamedTuple):
    """``loss`` is a scalar, ``gradient`` has a tensor of its shape for each parameter."""

    loss: Tensor
    gradient: dict[str, Tensor]
    diagonal: Diagonal

    def merge(self, other: GradientAndDiagonal) -> GradientAndDiagonal:
        """The sums over both data sets."""
        gradient = {name: value + other.gradient[name] for name, value in self.gradient.items()}
        diagonal = self.diagonal.merge(other.diagonal)
        return GradientAndDiagonal(self.loss + other.loss, gradient, diagonal)


@summed
@for_models_alone
@torch.no_grad()
def gradient_and_diag(
    model: nn.Module,
    data: Any,
    likelihood: Any = "gaussian",
    method: Method = "approx",
    *,
    params: Parameters = None,
    output: Output = None,
    samples: int = 1,
    sampler: Sampler = "labels",
    threshold: float = 1024,
    memory_budget: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    route: Route = "auto",
) -> GradientAndDiagonal:
    r"""The negative log-likelihood :math:`L = -\sum_n \log p(y_n | x_n)`, its gradient, and the
    diagonal of its curvature.

    All three are sums over the samples of ``data``: a pair (inputs, labels), or an iterable of such
    batches. The model runs once on a batch, from which the diagonal of :func:`lapkernels.diag`,
    with the same options, and :math:`\nabla L` are pulled back; with method ``approx`` together,
    where layers form chains. The ``.grad`` of the parameters is not changed.
    """
    check_method(method, threshold)
    if method == "hessian":
        raise ValueError("method='hessian' is not made from a forward pass alone; use hessian_diag")
    factor = OutputFactor(resolve(likelihood), method, samples, sampler, generator, threshold)

    def goes_together(graph: Graph) -> bool:
        like = next(iter(loop.chosen.values()))
        return method == "approx" and not graph.trace.opaque and passes_both(graph, like)

    options = (params, output, memory_budget, progress, route)
    loop = Loop(model, data, factor, *options, keep_graph=lambda graph: not goes_together(graph))
    losses: list[Tensor] = []
    gradient: dict[str, Tensor] = {}
    total = SquaredSum(loop.chosen)
    for one in loop:
        f, y = one.prediction, with_labels(one.target, "a gradient needs")
        losses.append(factor.likelihood.nll(f, y))
        score = factor.likelihood.score(f, y)
        if goes_together(one.graph):
            part = SquaredSum(loop.chosen)
            m = factor.likelihood.diagonal(f, y)
            pull_diagonal(one.graph, m, total.add, score, part.add)
            found = part.values
        else:
            add_diagonal(one, factor, total)
            found = _gradient(one, score)
        for name, value in found.items():
            gradient[name] = value if name not in gradient else gradient[name] + value
    with gathered():
        gradient, values = finite(gradient, "gradient"), finite(total.values)
    summary = loop.summary(method)
    return GradientAndDiagonal(torch.stack(losses).sum(), gradient, Diagonal(values, summary))


def _gradient(one: Pass, score: Tensor) -> dict[str, Tensor]:
    """The gradient of each parameter by autograd, which frees its graph."""
    trace = one.graph.trace
    assert trace.differentiable is not None
    leaves = list(trace.leaves.values())
    found = torch.autograd.grad(
        trace.differentiable,
        leaves,
        score.to(trace.differentiable.dtype),
        allow_unused=True,
        materialize_grads=True,
    )
    # Autograd may return one tensor for two parameters, or an expanded or sparse one.
    held: set[int] = set()
    gradient: dict[str, Tensor] = {}
    for (name, leaf), value in zip(trace.leaves.items(), found, strict=True):
        value = value.to_dense() if value.is_sparse else value
        own = value.stride() == leaf.stride() and value.data_ptr() not in held
        gradient[name] = value if own else torch.empty_like(leaf).copy_(value)
        held.add(value.data_ptr())
    return gradient
