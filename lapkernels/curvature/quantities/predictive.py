r"""Uncertainty of a linearised model's outputs under uncertain parameters.

With :math:`\theta \sim N(\theta^*, \Sigma)` and the Jacobian :math:`J_n` of the outputs,

.. math:: \mathrm{cov}[n, d, d'] = \sum_{p,q} J_n[d, p] \, \Sigma[p, q] \, J_n[d', q], \qquad
          \mathrm{var}[n, d] = \mathrm{cov}[n, d, d].

Unit columns at the outputs are pulled back, a few at a time, as windows where the output is an
image and that is cheaper. For independent entries and Kronecker factors a layer's share comes from
a kernel that stores no Jacobian. Nothing is subtracted: variances are sums of squares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.cost import Local
from lapkernels.curvature.data.autocast import for_models_alone
from lapkernels.curvature.data.batches import Output
from lapkernels.curvature.data.contents import plain
from lapkernels.curvature.passes.explain import explain_plan
from lapkernels.curvature.passes.passes import Pass, Route
from lapkernels.curvature.quantities.joint import JointJacobians
from lapkernels.curvature.quantities.loop import OutputLoop, unit_columns
from lapkernels.curvature.quantities.predictive_windows import LaneSum, local_sums
from lapkernels.curvature.recording.graph import Share
from lapkernels.curvature.results.covariance import CovarianceBlock, IndependentEntries
from lapkernels.curvature.results.summary import finite
from lapkernels.ops.base.checks import expect_finite, gathered
from lapkernels.ops.base.chunks import row_chunks
from lapkernels.ops.base.precision import wide
from lapkernels.rules import WeightUse
from lapkernels.rules.windows.sums import window_variances
from lapkernels.rules.windows.window import Window

# Of a weight that is applied at more positions, Jacobians are made once for several covariances.
FEW_POSITIONS = 4

# A variance for each entry of a parameter, or covariance blocks.
Covariance = Mapping[str, Tensor] | Sequence[CovarianceBlock]


@for_models_alone
@torch.no_grad()
def predictive_variance(
    model: nn.Module,
    x: Any,
    variance: Covariance,
    *,
    outputs: Tensor | None = None,
    output: Output = None,
    memory_budget: int | None = None,
    progress: bool = False,
    explain: bool = False,
    route: Route = "auto",
) -> Tensor:
    """Variance [N, *out] of the outputs of inputs ``x``.

    ``x`` is a tensor, a tuple of inputs or a dict of them by name, or any other iterable of such
    batches, whose samples follow each other in the result. ``variance`` has a tensor of its shape
    for each parameter that is uncertain, or is a list of covariance blocks; other parameters count
    as known. ``outputs`` selects some of the flattened outputs, [k] for all samples or [N, k] for
    each of them; the result is then [N, k].
    """
    parts: list[Tensor] = []
    shape: torch.Size = torch.Size()
    options = (memory_budget, progress, route)
    for one, chosen, total in _passes(model, x, variance, outputs, output, *options):
        shape, count = one.prediction.shape[1:], chosen.shape[1]
        local = Local(some=outputs is not None) if total.takes_windows else None
        plan = one.plan(count, local=local)
        if explain and not parts:
            print(explain_plan(one, plan))
        (stage,) = plan.stages
        if stage.layout is None:
            total.result = result = one.prediction.new_zeros(chosen.shape)
            one.pull(count, total.unit_columns(one.prediction, chosen), total)
        else:
            result = local_sums(one, stage, None if outputs is None else chosen, total)
        parts.append(result.flatten(1))
    result = finite({"the outputs": torch.cat(parts)}, "variance")["the outputs"]
    return result if outputs is not None else result.reshape(result.shape[0], *shape)


@for_models_alone
@torch.no_grad()
def predictive_covariance(
    model: nn.Module,
    x: Any,
    variance: Covariance,
    *,
    outputs: Tensor | None = None,
    output: Output = None,
    memory_budget: int | None = None,
    progress: bool = False,
    explain: bool = False,
    route: Route = "auto",
) -> Tensor:
    """Joint covariance [N, D, D] of the D flattened outputs, or [N, k, k] of selected ``outputs``.

    Arguments are those of ``predictive_variance``. A batch whose columns do not fit into the budget
    all at once is split into smaller ones; those of one sample that do not come in pairs of chunks.
    """
    parts: list[Tensor] = []
    options = (memory_budget, progress, route)
    for one, chosen, total in _passes(model, x, variance, outputs, output, *options, whole=True):
        count = chosen.shape[1]
        if explain and not parts:
            print(explain_plan(one, one.plan(count)))
        result = one.prediction.new_empty(chosen.shape[0], count, count)
        for columns in _pairs(count, one.columns_in_budget, chosen.device):
            picked = chosen[:, columns]
            total.joint = True
            total.result = one.prediction.new_zeros(len(chosen), len(columns), len(columns))
            one.pull_together(unit_columns(one.prediction, picked), total)
            total.finish()
            result[:, columns.unsqueeze(1), columns] = total.result
        parts.append(result)
    result = parts[0] if len(parts) == 1 else torch.cat(parts)
    return finite({"the outputs": result}, "covariance")["the outputs"]


@torch.no_grad()
def predictive_variances(
    model: nn.Module,
    x: Any,
    families: Sequence[tuple[CovarianceBlock, Tensor]],
    *,
    outputs: Tensor | None = None,
    output: Output = None,
    memory_budget: int | None = None,
    route: Route = "auto",
) -> Tensor:
    """Each block's share of the variance under K covariances, [blocks, K, N, k], in one pass.

    ``families`` has blocks with the weights [K, R] of their coordinates in each covariance; all
    K cost one backward pass. ``outputs`` is [k] or [N, k], None for all of them.
    """
    blocks = [block for block, _ in families]
    parts: list[Tensor] = []
    options = (memory_budget, False, route)
    for one, chosen, total in _passes(model, x, blocks, outputs, output, *options):
        total.families = {block.names: weights for block, weights in families}
        sizes = (len(families), len(families[0][1]), *chosen.shape)
        total.result = result = one.prediction.new_zeros(sizes)
        one.pull(chosen.shape[1], total.unit_columns(one.prediction, chosen), total)
        parts.append(result)
    return finite({"the outputs": torch.cat(parts, 2)}, "variance")["the outputs"]


class PredictiveSum(JointJacobians, LaneSum):
    """J Σ Jᵀ, [N, V, V] of the columns of a step if ``joint``, else its diagonals.

    The step's columns start at ``first`` in the diagonals [N, k]. With weights in ``families``, by
    the names of a block, there are diagonals [blocks, K, N, k], one for each block and row.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], blocks: Sequence[CovarianceBlock]
    ) -> None:
        super().__init__(parameters)
        self.alone = {block.names[0]: block for block in blocks if len(block.names) == 1}
        self.several = [block for block in blocks if len(block.names) > 1]
        self.result = torch.empty(0)
        self.joint = False
        self.first = 0
        self.families: dict[tuple[str, ...], Tensor] = {}

    @property
    def takes_windows(self) -> bool:
        """Whether the variance of a lane can be computed from its windows."""
        independent = [isinstance(block, IndependentEntries) for block in self.alone.values()]
        return all(independent) and not self.several

    def begin(self, one: Pass) -> Pass:
        return super().begin(one) if self.several else one.keeping()

    def unit_columns(self, f: Tensor, chosen: Tensor) -> Callable[[int, int], Tensor]:
        """A function that makes chunks of columns and records where they start."""

        def chunk(first: int, last: int) -> Tensor:
            self.first = first
            return unit_columns(f, chosen[:, first:last])

        return chunk

    def share(self, share: Share, s: Tensor) -> None:
        block = self.alone.get(share.name)
        if block is None:
            super().share(share, s)
            return
        weights = self.families.get(block.names)
        # At many positions one G serves all weights at less than each of them takes alone.
        many = isinstance(share.use, WeightUse) and share.use.positions > FEW_POSITIONS
        if weights is None or not many:
            value = block.of_share(share, s, self.joint, weights)
            if value is not None:
                self._part(block, slice(None), s.shape[0]).add_(value)
                return
        for rows in row_chunks(share.use.count, s.shape[0] * prod(share.use.shape)):
            self._add(block, share.jacobian(s, rows), rows)

    def window(self, share: Share, window: Window, size: Sequence[int]) -> None:
        block = self.alone[share.name]
        assert isinstance(block, IndependentEntries)
        value = window_variances(share.use, window, share.to_weight(block.variance))
        if value is None:
            super().window(share, window, size)
            return
        lanes = value.unflatten(1, (window.lanes.count, -1))  # [V, N, pixels]
        self.result += lanes.transpose(0, 1).flatten(1)

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        block = self.alone.get(name)
        if block is None:
            super().jacobian(name, g, rows)
        else:
            self._add(block, g.reshape(*g.shape[:2], -1), rows)

    def finish(self) -> None:
        for block in self.several:
            for rows, g in self.together(block.names):
                self._add(block, g, rows)
        self.clear()

    def _add(self, block: CovarianceBlock, g: Tensor, rows: slice) -> None:
        """Add the share of Jacobians ``g`` [V, n, P]."""
        if self.joint:
            root = block.root(g).transpose(0, 1)
            value = root @ root.mT
        else:
            value = block.squared_norm(g, self.families.get(block.names)).movedim((0, 1), (-1, -2))
        self._part(block, rows, g.shape[0]).add_(value)

    def _part(self, block: CovarianceBlock, rows: slice, columns: int) -> Tensor:
        """The columns of the step."""
        if self.joint:
            return self.result[rows]
        own = self.result
        if self.families:
            own = own[list(self.families).index(block.names)]
        return own[..., rows, self.first : self.first + columns]


def _passes(
    model: nn.Module,
    x: Any,
    variance: Covariance,
    outputs: Tensor | None,
    output: Output,
    budget: int | None,
    progress: bool,
    route: Route,
    whole: bool = False,
) -> Iterator[tuple[Pass, Tensor, PredictiveSum]]:
    """Passes, each with the selected flat outputs [N, k] and an empty sum.

    ``whole``: batches so small that all columns fit the budget at once, down to one sample.
    """
    if isinstance(variance, Mapping):
        check_variance(model, variance)
        blocks = [IndependentEntries(name, value) for name, value in variance.items()]
    else:
        blocks = list(variance)

    def split(one: Pass) -> int:
        size = one.prediction.shape[1:].numel() if outputs is None else outputs.shape[-1]
        return -(-size // PredictiveSum(loop.chosen, blocks).begin(one).columns_in_budget)

    params = [name for block in blocks for name in block.names]
    options = (params, output, budget, progress, route)
    loop = OutputLoop(model, x, outputs, *options, split=split if whole else None)
    for one, chosen in loop:
        total = PredictiveSum(loop.chosen, blocks)
        yield total.begin(one), chosen, total


def _pairs(count: int, step: int, device: torch.device) -> Iterator[Tensor]:
    """Sets of at most ``step`` columns, at least two, that cover all pairs of columns."""
    everything = torch.arange(count, device=device)
    if count <= step or count == 1:
        yield everything
        return
    chunks = everything.split(max(1, step // 2))
    for i, first in enumerate(chunks):
        for second in chunks[i + 1 :]:
            yield torch.cat([first, second])


def check_variance(model: nn.Module, variance: Mapping[str, Tensor]) -> None:
    """Raise unless each entry is a finite variance of a parameter, of its shape."""
    if not variance:
        raise ValueError("variance is empty: it needs an entry for each uncertain parameter")
    known = dict(plain(model).named_parameters())
    strange = [name for name in variance if name not in known]
    if strange:
        raise ValueError(f"variance has entries that are no parameters of the model: {strange}")
    for name, value in variance.items():
        like = known[name]
        if not like.is_floating_point():
            raise TypeError(f"{name} has dtype {like.dtype}: real parameters are needed")
        fits = value.shape == like.shape and value.device == like.device
        if not fits or value.dtype != wide(like.dtype):
            raise ValueError(
                f"variance of {name} has shape {tuple(value.shape)}, {value.dtype} on "
                f"{value.device}, but the parameter needs {tuple(like.shape)}, {wide(like.dtype)} "
                f"on {like.device}"
            )
    with gathered():
        for name, value in variance.items():
            if value.numel():
                # NaN if any entry is.
                low, high = value.aminmax()
                expect_finite(low.sqrt() + high, partial(_refuse_variance, name, low, high))


def _refuse_variance(name: str, low: Tensor, high: Tensor) -> None:
    least, most = float(low), float(high)
    if not (least >= 0 and most < inf):
        raise ValueError(
            f"variance of {name} holds {most if least >= 0 else least}: finite numbers that are "
            "not negative are needed"
        )
