r"""Uncertainty of a linearised model's outputs under independent parameters.

With :math:`\theta_p \sim N(\theta^*_p, \sigma^2_p)` and the Jacobian :math:`J_n` of the outputs,

.. math:: \mathrm{var}[n, d] = \sum_p \sigma^2_p J_n[d, p]^2, \qquad
          \mathrm{cov}[n, d, d'] = \sum_p J_n[d, p] \, \sigma^2_p \, J_n[d', p].

Unit columns at the outputs are carried back, a few at a time; a layer's share comes from a kernel
that holds no Jacobian. Nothing is subtracted: variances are sums of squares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.passes import Route, passes
from lapkernels.curvature.plan import Share
from lapkernels.curvature.selection import Output
from lapkernels.curvature.steps import SteppedPass, carry_whole
from lapkernels.curvature.walk import Collector

Variance = Mapping[str, Tensor]


@torch.no_grad()
def predictive_variance(
    model: nn.Module,
    x: Any,
    variance: Variance,
    *,
    outputs: Tensor | None = None,
    output: Output = None,
    memory_budget: int | None = None,
    route: Route = "auto",
) -> Tensor:
    """Variance [N, *out] of the outputs of inputs ``x`` (a tensor, a tuple, or a dict by name).

    ``variance`` has a tensor of its shape for each parameter that is uncertain; the others count as
    known. ``outputs`` selects some of the flattened outputs, [k] for all samples or [N, k] for each
    of them; the result is then [N, k].
    """
    parts: list[Tensor] = []
    shape: torch.Size = torch.Size()
    for one, chosen in _passes(model, x, variance, outputs, output, memory_budget, route):
        total = VarianceSum(variance, one.prediction.new_zeros(chosen.shape))
        one.pull(chosen.shape[1], total.unit_columns(one, chosen), total)
        parts.append(total.result)
        shape = one.prediction.shape[1:]
    result = torch.cat(parts)
    return result if outputs is not None else result.reshape(result.shape[0], *shape)


@torch.no_grad()
def predictive_covariance(
    model: nn.Module,
    x: Any,
    variance: Variance,
    *,
    outputs: Tensor | None = None,
    output: Output = None,
    memory_budget: int | None = None,
    route: Route = "auto",
) -> Tensor:
    """Joint covariance [N, D, D] of the D flattened outputs, or [N, k, k] of selected ``outputs``.

    Arguments are those of ``predictive_variance``. Columns that do not fit into the budget all at
    once come in pairs of chunks.
    """
    parts: list[Tensor] = []
    for one, chosen in _passes(model, x, variance, outputs, output, memory_budget, route):
        count = chosen.shape[1]
        result = one.prediction.new_empty(chosen.shape[0], count, count)
        for columns in _pairs(count, one.columns_in_budget):
            picked = chosen[:, columns]
            size = (chosen.shape[0], len(columns), len(columns))
            total = CovarianceSum(variance, one.prediction.new_zeros(size))
            carry_whole(one, _unit_columns(one.prediction, picked), total)
            result[:, columns.unsqueeze(1), columns] = total.result
        parts.append(result)
    return torch.cat(parts)


@dataclass
class VarianceSum(Collector):
    """[N, k], of which the columns now on their way are ``first`` and those that follow."""

    variance: Variance
    result: Tensor
    first: int = 0

    def unit_columns(self, one: SteppedPass, chosen: Tensor) -> Any:
        """A maker of chunks of columns, which notes where they begin."""

        def chunk(first: int, last: int) -> Tensor:
            self.first = first
            return _unit_columns(one.prediction, chosen[:, first:last])

        return chunk

    def share(self, share: Share, s: Tensor) -> None:
        value = share.use.squared_dot(s, share.to_weight(self.variance[share.name]))
        self.result[:, self.first : self.first + s.shape[0]] += value

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        flat = g.reshape(*g.shape[:2], -1)
        value = (flat.square() @ self.variance[name].flatten()).T
        self.result[rows, self.first : self.first + g.shape[0]] += value


@dataclass
class CovarianceSum(Collector):
    """[N, V, V] of all columns on their way."""

    variance: Variance
    result: Tensor

    def share(self, share: Share, s: Tensor) -> None:
        self.result += share.use.gram(s, share.to_weight(self.variance[share.name]))

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        flat = g.reshape(*g.shape[:2], -1).transpose(0, 1)
        self.result[rows] += (flat * self.variance[name].flatten()) @ flat.mT


def _passes(
    model: nn.Module,
    x: Any,
    variance: Variance,
    outputs: Tensor | None,
    output: Output,
    budget: int | None,
    route: Route,
) -> Iterator[tuple[SteppedPass, Tensor]]:
    """Passes, each with the flat outputs [N, k] that are asked for."""
    check_variance(model, variance)
    _, found = passes(
        model,
        [(x, None)],
        params=list(variance),
        output=output,
        memory_budget=budget,
        route=route,
    )
    done = 0
    for one in found:
        size = one.prediction.shape[1:].numel()
        chosen = _chosen(outputs, size, one.prediction.device)
        if chosen.shape[0] != 1:
            chosen = chosen[done : done + one.count]
            if chosen.shape[0] != one.count:
                raise ValueError(
                    f"outputs has {done + chosen.shape[0]} rows, but there are more samples"
                )
        done += one.count
        yield SteppedPass.of(one), chosen.expand(one.count, -1)
    if outputs is not None and outputs.dim() == 2 and outputs.shape[0] != done:
        raise ValueError(f"outputs has {outputs.shape[0]} rows, but there are {done} samples")


def _chosen(outputs: Tensor | None, size: int, device: torch.device) -> Tensor:
    if outputs is None:
        return torch.arange(size, device=device).unsqueeze(0)
    if outputs.is_floating_point() or outputs.dtype == torch.bool or outputs.dim() not in (1, 2):
        raise ValueError(
            f"outputs has dtype {outputs.dtype} and shape {tuple(outputs.shape)}: flat indices of "
            "outputs are needed, [k] or [N, k]"
        )
    bad = (outputs < 0) | (outputs >= size)
    if bool(bad.any()):
        raise ValueError(f"outputs holds {int(outputs[bad][0])}: 0 to {size - 1} are possible")
    return outputs.to(device).reshape(-1, outputs.shape[-1])


def _unit_columns(f: Tensor, chosen: Tensor) -> Tensor:
    """One at output ``chosen`` [N, v] of each sample, zero elsewhere: [v, *f.shape]."""
    s = f.new_zeros(chosen.shape[1], f.shape[0], f.shape[1:].numel())
    return s.scatter_(2, chosen.T.unsqueeze(2), 1.0).reshape(chosen.shape[1], *f.shape)


def _pairs(count: int, step: int) -> Iterator[Tensor]:
    """Sets of at most ``step`` columns, two at least, among which all pairs meet."""
    everything = torch.arange(count)
    if count <= step or count == 1:
        yield everything
        return
    chunks = everything.split(max(1, step // 2))
    for i, first in enumerate(chunks):
        for second in chunks[i + 1 :]:
            yield torch.cat([first, second])


def check_variance(model: nn.Module, variance: Variance) -> None:
    """Raise unless each entry is a finite variance of a parameter, of its shape."""
    if not variance:
        raise ValueError("variance is empty: it needs an entry for each uncertain parameter")
    known = dict(model.named_parameters())
    strange = [name for name in variance if name not in known]
    if strange:
        raise ValueError(f"variance has entries that are no parameters of the model: {strange}")
    for name, value in variance.items():
        like = known[name]
        if value.shape != like.shape or value.dtype != like.dtype or value.device != like.device:
            raise ValueError(
                f"variance of {name} has shape {tuple(value.shape)}, {value.dtype} on "
                f"{value.device}, but the parameter has {tuple(like.shape)}, {like.dtype} on "
                f"{like.device}"
            )
        bad = ~(value.isfinite() & (value >= 0))
        if bool(bad.any()):
            raise ValueError(
                f"variance of {name} holds {float(value[bad][0])}: finite numbers that are not "
                "negative are needed"
            )
