"""The diagonal of the Gauss-Newton matrix, by every method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.diagonal import pull_diagonal
from lapkernels.curvature.backward.mixed import pull_mixed
from lapkernels.curvature.data.batches import Output, check_choice
from lapkernels.curvature.data.contents import Parameters
from lapkernels.curvature.data.processes import summed
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.passes.passes import Pass, Route
from lapkernels.curvature.quantities.columns import ColumnSum, OutputFactor, Sampler
from lapkernels.curvature.quantities.hessian import hessian_diag
from lapkernels.curvature.quantities.loop import Loop
from lapkernels.curvature.recording.graph import Share
from lapkernels.curvature.results.summary import Diagonal, finite
from lapkernels.likelihoods import resolve
from lapkernels.ops.base import chunks
from lapkernels.rules.base.shared import Scaled, reads_once
from lapkernels.rules.windows.sums import window_squares
from lapkernels.rules.windows.window import Window

Method = Literal["exact", "mc", "empirical", "approx", "mixed", "hessian"]


@summed
@torch.no_grad()
def diag(
    model: nn.Module,
    data: Any,
    likelihood: Any = "gaussian",
    method: Method = "exact",
    *,
    params: Parameters = None,
    output: Output = None,
    samples: int = 1,
    sampler: Sampler = "labels",
    threshold: float = 1024,
    memory_budget: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    explain: bool = False,
    route: Route = "auto",
) -> Diagonal:
    r"""Diagonal of :math:`H = \sum_n J_n^T H_n J_n`, one tensor for each parameter, of its shape.

    ``data`` is a batch of inputs, a pair (inputs, labels), or an iterable of such batches; the
    result is the sum over all samples. ``method``:

    - ``exact``: all columns of the factor of :math:`H_n`;
    - ``mc``: an unbiased estimate from ``samples`` columns, scores at labels drawn from the model
      (``sampler="labels"``) or all columns with random signs (``"signs"``);
    - ``empirical``: squared gradients at the true labels;
    - ``approx``: only the diagonal of the second derivative is pulled back from op to op;
    - ``mixed``: exact at values of at most ``threshold`` features a sample, approx elsewhere;
    - ``hessian``: the Hessian of the loss at the true labels, by Hessian-vector products.

    ``params`` chooses parameters: names of parameters or modules, a compiled pattern, a predicate
    of name and parameter; all that require a gradient by default. ``output`` selects a tensor of
    what the model returns. ``memory_budget`` bounds the bytes of columns at a time. ``explain``
    prints the plan: what is carried to each layer, and at which cost, for the first batch.
    """
    check_method(method, threshold)
    if method == "hessian":
        return hessian_diag(
            model, data, likelihood,
            params=params, output=output, memory_budget=memory_budget, progress=progress,
        )  # fmt: skip
    factor = OutputFactor(resolve(likelihood), method, samples, sampler, generator, threshold)
    options = (params, output, memory_budget, progress, route)
    loop = Loop(model, data, factor, *options, explain=explain)
    total = SquaredSum(loop.chosen)
    for one in loop:
        add_diagonal(one, factor, total)
    return Diagonal(finite(total.values), loop.summary(method))


def check_method(method: str, threshold: float) -> None:
    """Raise unless this is a method, with a threshold that it can take."""
    check_choice("method", method, Method)
    if not threshold >= 0:
        raise ValueError(f"threshold={threshold} must be a number of features, or infinity")


def add_diagonal(one: Pass, factor: OutputFactor, total: SquaredSum) -> None:
    """Add the diagonal of a recorded batch."""
    if factor.method not in ("approx", "mixed"):
        factor.pull(one, total)
        return
    if one.graph.trace.opaque:
        raise Refused(
            f"{one.graph.trace.opaque[0]}, through which no diagonal can be passed; methods "
            "'exact', 'mc' and 'empirical' work"
        )
    if factor.method == "approx":
        m = factor.likelihood.diagonal(one.prediction, one.target)
        pull_diagonal(one.graph, m, total.add)
        return
    start = one.mixed_start(factor.likelihood, factor.threshold)
    plan = one.plan_mixed(start, factor.threshold)
    pull_mixed(one.graph, plan, start, total, total.add)


class SquaredSum(ColumnSum):
    """sum_{n,v} G_{n,v}², for each parameter."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self.parameters = parameters
        self._found: dict[str, Tensor] = {}

    @property
    def values(self) -> dict[str, Tensor]:
        """The sum of each parameter, of its shape."""
        return {
            name: self._found[name] if name in self._found else torch.zeros_like(p)
            for name, p in self.parameters.items()
        }

    def add(self, name: str, value: Tensor) -> None:
        """Add a parameter's share, a new tensor of which this takes ownership."""
        if name in self._found:
            self._found[name] += value
            return
        parameter = self.parameters[name]
        same = value.dtype == parameter.dtype and value.stride() == parameter.stride()
        self._found[name] = value if same else torch.empty_like(parameter).copy_(value)

    def share(self, share: Share, s: Tensor) -> None:
        self.add(share.name, share.to_parameter(share.use.squared_sum(s)))

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        columns = g.flatten(0, 1)
        if columns.numel() <= chunks.CHUNK:
            self.add(name, columns.square().sum(0))
            return
        # Each of these may be as large as the parameter.
        for column in columns:
            if name in self._found:
                self._found[name].addcmul_(column, column)
            else:
                self.add(name, column.square())

    def scaled(self, share: Share, columns: Scaled) -> None:
        if reads_once(share.use, columns.factor.shape[1]):
            self.add(share.name, share.to_parameter(share.use.squared(columns.squares())))
        else:
            super().scaled(share, columns)

    def window(self, share: Share, window: Window, size: Sequence[int]) -> None:
        value = window_squares(share.use, window)
        if value is None:
            super().window(share, window, size)
        else:
            self.add(share.name, share.to_parameter(value))
