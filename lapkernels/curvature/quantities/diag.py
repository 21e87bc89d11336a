"""The diagonal of the Gauss-Newton matrix, by every method."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.diagonal import pull_diagonal
from lapkernels.curvature.backward.mixed import pull_mixed
from lapkernels.curvature.data.autocast import for_models_alone
from lapkernels.curvature.data.batches import Output, check_choice
from lapkernels.curvature.data.contents import Parameters
from lapkernels.curvature.data.processes import summed
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.passes.passes import Pass, Route
from lapkernels.curvature.quantities.hessian import hessian_diag
from lapkernels.curvature.quantities.loop import ColumnSum, Loop, OutputFactor, Sampler
from lapkernels.curvature.recording.graph import Share
from lapkernels.curvature.results.summary import Diagonal, finite
from lapkernels.likelihoods import Columns, resolve
from lapkernels.ops.base import chunks
from lapkernels.ops.base.precision import wide
from lapkernels.rules.base.shared import Scaled, reads_once
from lapkernels.rules.windows.sums import window_squares
from lapkernels.rules.windows.window import Window

Method = Literal["exact", "mc", "empirical", "approx", "mixed", "hessian"]
# Draws of a batch: the variance of fewer is too uncertain; more say that exact is the method.
LEAST, MOST = 8, 1024
STEP = 4


@summed
@for_models_alone
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
    tolerance: float | None = None,
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
      (``sampler="labels"``) or sums of all columns with random signs (``"signs"``), orthogonal
      between the draws, so that as many of them as there are columns are exact. With a
      ``tolerance`` it draws until the standard error of each parameter's sum of entries is at
      most that fraction of it, or pulls all columns back where these are fewer; the result has
      ``standard_errors``. A single entry is less certain than the sum: 10 % takes some 200 draws;
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
    if tolerance is not None:
        sampled = Sampled(loop.chosen, factor, tolerance)
        for one in loop:
            sampled.add(one)
        found = finite(sampled.total.values)
        return Diagonal(found, loop.summary(method), sampled.standard_errors)
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
        found = self._found
        return {
            name: found[name] if name in found else torch.zeros_like(p, dtype=wide(p.dtype))
            for name, p in self.parameters.items()
        }

    def add(self, name: str, value: Tensor) -> None:
        """Add a parameter's share, a new tensor of which this takes ownership."""
        if name in self._found:
            self._found[name] += value
            return
        parameter = self.parameters[name]
        dtype = wide(parameter.dtype)
        same = value.dtype == dtype and value.stride() == parameter.stride()
        self._found[name] = value if same else torch.empty_like(parameter, dtype=dtype).copy_(value)

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


class Sampled:
    """The Monte Carlo diagonal from as many columns as the asked accuracy takes.

    Draw k of a batch estimates the diagonal; let t_k be the sum of its entries for one parameter.
    The mean of S independent draws has the squared standard error var(t) / S. Signs come without
    replacement from a period of W draws, whose mean is exact: var(t) / S (1 - S / W). Batches are
    independent, so squared errors add up, and what is asked of the sum over all batches so far
    decides how many columns the present batch gets.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        factor: OutputFactor,
        tolerance: float,
    ) -> None:
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance={tolerance} must be a relative error between 0 and 1")
        if factor.method != "mc":
            raise ValueError(f"tolerance is for method 'mc', not {factor.method!r}")
        self._factor, self._tolerance = replace(factor, samples=1), tolerance
        self._least = max(factor.samples, LEAST)
        self._sums = partial(SquaredSum, parameters)
        self.total = self._sums()
        where = next(iter(parameters.values())).device
        self._totals = torch.zeros(len(parameters), dtype=torch.float64, device=where)
        self._squares = torch.zeros_like(self._totals)
        self._warned = False

    @property
    def standard_errors(self) -> dict[str, float]:
        """The standard error of the sum of each parameter's entries."""
        return dict(zip(self.total.parameters, self._squares.sqrt().tolist(), strict=True))

    def add(self, one: Pass) -> None:
        """Add a batch."""
        columns = self._factor.likelihood.columns(one.prediction, one.target)
        found = None if columns.count <= self._least else self._sample(one, columns)
        if found is None:
            found = self._sums(), torch.zeros_like(self._squares)
            one.pull_quadratic(columns, found[0])
        batch, squares = found
        self._totals += _totals(batch)
        self._squares += squares
        for name, value in batch.values.items():
            self.total.add(name, value)

    def _sample(self, one: Pass, columns: Columns) -> tuple[SquaredSum, Tensor] | None:
        """Sum and squared errors of a batch; None if all columns are fewer than it would take."""
        drawn = self._factor.drawn(one.prediction, one.target)
        period = 1 << (columns.signed - 1).bit_length()
        if self._factor.sampler == "labels":
            period = 0
        batch, sums = self._sums(), list[Tensor]()
        while True:
            k = len(sums)
            draw = self._sums()
            one.pull(1, lambda first, last, k=k: drawn(k + first, k + last), draw)
            sums.append(_totals(draw))
            for name, value in draw.values.items():
                batch.add(name, value)
            count = k + 1
            if count < self._least or (count - self._least) % STEP:
                continue
            spread, mean = torch.var_mean(torch.stack(sums), 0)
            left = max(1 - count / period, 0.0) if period else 1.0
            squares = spread / count * left
            allowed = self._tolerance**2 * (self._totals + mean).square()
            # How many times the squared error is too large.
            excess = float(((self._squares + squares) / allowed).nan_to_num(0.0).max())
            if excess > 1 and count * (excess - 1) >= columns.count:
                return None
            if excess > 1 and count < MOST:
                continue
            if excess > 1 and not self._warned:
                self._warned = True
                warnings.warn(
                    f"tolerance={self._tolerance} is not reached with {MOST} columns of a batch: "
                    "the standard errors of the result say what is; method='exact' has none",
                    RuntimeWarning,
                    stacklevel=2,
                )
            for value in batch.values.values():
                value /= count
            return batch, squares


def _totals(batch: SquaredSum) -> Tensor:
    """The sum of the entries of each parameter."""
    return torch.stack([value.sum(dtype=torch.float64) for value in batch.values.values()])
