r"""Jacobians and gradients of single samples, in the order of ``parameters_to_vector``.

.. math:: J[n, d, p] = \partial f_n[d] / \partial \theta_p, \qquad
          g[n, p] = \partial (-\log p(y_n | f_n)) / \partial \theta_p.

The result is the only Jacobian in memory: a few columns at a time are written into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.autocast import for_models_alone
from lapkernels.curvature.data.batches import Output
from lapkernels.curvature.data.contents import Parameters
from lapkernels.curvature.passes.passes import Pass, Route
from lapkernels.curvature.quantities.joint import JointJacobians
from lapkernels.curvature.quantities.loop import (
    Loop,
    OutputFactor,
    OutputLoop,
    unit_columns,
    with_labels,
)
from lapkernels.curvature.results.summary import finite
from lapkernels.likelihoods import resolve


@for_models_alone
@torch.no_grad()
def jacobian(
    model: nn.Module,
    x: Any,
    *,
    params: Parameters = None,
    outputs: Tensor | None = None,
    output: Output = None,
    memory_budget: int | None = None,
    progress: bool = False,
    route: Route = "auto",
) -> Tensor:
    """Jacobians [N, D, P] of the D flattened outputs of inputs ``x`` in the chosen parameters.

    ``x`` is a tensor, a tuple of inputs or a dict of them by name, or any other iterable of such
    batches. ``outputs`` selects some of the flattened outputs, [k] for all samples or [N, k] for
    each of them; the result is then [N, k, P], and the others are never computed.
    """
    loop = OutputLoop(model, x, outputs, params, output, memory_budget, progress, route)
    parts: list[Tensor] = []
    for one, picked in loop:

        def columns(first: int, last: int, one: Pass = one, picked: Tensor = picked) -> Tensor:
            return unit_columns(one.prediction, picked[:, first:last])

        parts.append(_pulled(one, loop.chosen, picked.shape[1], columns))
    result = parts[0] if len(parts) == 1 else torch.cat(parts)
    return finite({"the outputs": result}, "Jacobian")["the outputs"]


@for_models_alone
@torch.no_grad()
def sample_gradients(
    model: nn.Module,
    data: Any,
    likelihood: Any = "gaussian",
    *,
    params: Parameters = None,
    output: Output = None,
    memory_budget: int | None = None,
    progress: bool = False,
    route: Route = "auto",
) -> Tensor:
    """Gradients [N, P] of the negative log-likelihood of each sample of ``data``, with labels."""
    factor = OutputFactor(resolve(likelihood), "empirical")
    loop = Loop(model, data, factor, params, output, memory_budget, progress, route)
    parts: list[Tensor] = []
    for one in loop:
        y = with_labels(one.target, "gradients need")
        score = factor.likelihood.score(one.prediction, y).unsqueeze(0)
        parts.append(_pulled(one, loop.chosen, 1, lambda first, last, s=score: s)[:, 0])
    result = parts[0] if len(parts) == 1 else torch.cat(parts)
    return finite({"the loss": result}, "gradient")["the loss"]


class _Rows(JointJacobians):
    """Writes the Jacobians of columns ``first`` and on into ``result`` [N, V, P]."""

    def __init__(self, parameters: dict[str, nn.Parameter], result: Tensor) -> None:
        super().__init__(parameters)
        self.result, self.first = result, 0

    def finish(self) -> None:
        for rows, g in self.together(list(self.parameters)):
            self.result[rows, self.first : self.first + len(g)] = g.transpose(0, 1)
        self.clear()


def _pulled(
    one: Pass,
    parameters: dict[str, nn.Parameter],
    count: int,
    columns: Callable[[int, int], Tensor],
) -> Tensor:
    """[N, V, P] of ``count`` columns of a pass, made by ``columns(first, last)``."""
    size = sum(parameter.numel() for parameter in parameters.values())
    total = _Rows(parameters, one.prediction.new_zeros(one.count, count, size))

    def chunk(first: int, last: int) -> Tensor:
        total.first = first
        return columns(first, last)

    total.begin(one).pull(count, chunk, total)
    return total.result
