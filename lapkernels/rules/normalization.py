r"""Normalisation of each group of K entries by its own mean and variance, or by fixed ones.

With xh = (x - mean) r, r = 1 / sqrt(var + eps), and y = w xh + b,

    d y_o / d x_i = w_o r (delta_oi - 1/K - xh_o xh_i / K),

without the 1/K where the mean is not taken off (RMSNorm), and w r delta_oi where mean and variance
are constants (BatchNorm in eval mode). With q = w s, or q = w² m for a diagonal,

    s_i = r (q_i - mean(q) - xh_i mean(q xh)),
    m_i = r² (q_i (1 - 2/K - 2 xh_i²/K) + sum_o q_o (1 + xh_o xh_i)² / K²).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch import Tensor

from lapkernels.rules.base.normalised import Gain, Normalised, has_channels
from lapkernels.rules.base.rule import (
    Call,
    Kept,
    Operand,
    Rule,
    Unsupported,
    register_rule,
    whole_weight,
)
from lapkernels.rules.base.samples import MixesSamples, Samples, along, follow
from lapkernels.rules.base.uses import OwnEntriesUse, ScaleUse, Use
from lapkernels.rules.elementwise import sum_to_shape


class Affine(Rule):
    """y = w xh + b; ``shape`` is how w and b are broadcast against x."""

    repeatable = True

    def __init__(
        self,
        call: Call,
        x: Operand,
        weight: Operand | None,
        bias: Operand | None,
        shape: tuple[int, ...],
        dims: Sequence[int],
    ) -> None:
        super().__init__()
        whole_weight(call, weight, bias)
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it normalises"))
        self.x = x.kept()
        self.weight = None if weight is None else weight.kept()
        self.shape = shape
        # The shapes of w and b and what multiplies them, by operand.
        self.affine: dict[int, tuple[tuple[int, ...], Callable[[], Tensor] | None]] = {}
        self.weights = [k for k, operand in enumerate(call.operands) if operand.is_weight]
        where = self.samples[0]
        for index, operand in enumerate(call.operands):
            if operand is weight or operand is bias:
                factor = self.by_weight if operand is weight else None
                self.affine[index] = operand.shape, factor
                if where is not None and operand.active:
                    self.uses[index] = self._use(operand, where, factor)

    def _use(self, operand: Operand, where: Samples, factor: Callable[[], Tensor] | None) -> Use:
        """Use of weight or bias, which InstanceNorm repeats for each sample."""
        dim = where.dim - (len(self.x.tensor.shape) - len(self.shape))
        if where.count == 1 or dim < 0 or self.shape[dim] == 1:
            return ScaleUse(operand.shape, where, factor, self.shape)

        def gradient(s: Tensor) -> Tensor:
            value = s if factor is None else s * factor()
            return sum_to_shape(value, self.shape).reshape(s.shape[0], *operand.shape)

        def squares(m: Tensor) -> Tensor:
            value = m if factor is None else m * factor().square()
            return sum_to_shape(value.unsqueeze(0), self.shape).reshape(operand.shape)

        return OwnEntriesUse(operand.shape, where.at(dim), gradient, squares)

    def standardised(self) -> Tensor:
        """The normalised x, before weight and bias."""
        raise NotImplementedError

    def by_weight(self) -> Tensor:
        """What multiplies the weight."""
        return self.standardised()

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index == 0:
            return self._pull_x(s)
        if index not in self.affine:
            return None
        shape, factor = self.affine[index]
        value = s if factor is None else s * factor()
        return sum_to_shape(value, self.shape).reshape(s.shape[0], *shape)

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        if index == 0:
            return self._pull_x_diagonal(m)
        if index not in self.affine:
            return None
        shape, factor = self.affine[index]
        value = m if factor is None else m * factor().square()
        return sum_to_shape(value.unsqueeze(0), self.shape)[0].reshape(shape)

    def _pull_x(self, s: Tensor) -> Tensor:
        raise NotImplementedError

    def _pull_x_diagonal(self, m: Tensor) -> Tensor:
        raise NotImplementedError

    def _scaled(self, s: Tensor, squared: bool = False) -> Tensor:
        if self.weight is None:
            return s
        w = self.weight.tensor.reshape(self.shape)
        return s * (w.square() if squared else w)


class OwnStatistics(Affine):
    """Each group by its own statistics; ``view`` is x's shape, groups along ``dims``."""

    view: tuple[int, ...]
    dims: tuple[int, ...]
    mean: Kept | None
    rstd: Kept

    def standardised(self) -> Tensor:
        return self._grouped().reshape(self.x.tensor.shape)

    @property
    def _aligned(self) -> tuple[int, ...]:
        """The shape of a statistic, broadcast against the view."""
        return tuple(1 if d in self.dims else size for d, size in enumerate(self.view))

    def _statistic(self, kept: Kept) -> Tensor:
        return kept.tensor.reshape(self._aligned)

    def _reciprocal(self) -> Tensor:
        """r, broadcast against the view."""
        return self._statistic(self.rstd)

    def uses_behind(self, use: Use) -> dict[int, Use] | None:
        shape, aligned = tuple(self.x.tensor.shape), self._aligned
        gained = self.weight is None or self.shape == aligned[len(aligned) - len(self.shape) :]
        fits = gained and self.view == shape and has_channels(use, aligned, shape)
        if not fits:
            return None
        layout = (shape, use, aligned, self.mean is not None)
        pulls = (self._pull_x, self._pull_x_diagonal)
        found: dict[int, Use] = {}
        for index in self.weights:
            size, factor = self.affine.get(index, ((), None))
            if index not in self.affine:
                found[index] = Normalised(*layout, self.standardised, self._scale, *pulls)
            elif factor is None:
                return None
            else:
                found[index] = Gain(size, use, factor)
        return found

    def _scale(self) -> Tensor:
        """What multiplies x - mean, one number for each channel."""
        return self._scaled(self._reciprocal()).flatten()

    def _grouped(self) -> Tensor:
        x = self.x.tensor.reshape(self.view)
        if self.mean is not None:
            x = x - self._statistic(self.mean)
        return x * self._reciprocal()

    def _pull_x(self, s: Tensor) -> Tensor:
        q = self._scaled(s).reshape(s.shape[0], *self.view)
        xh, dims = self._grouped(), [1 + d for d in self.dims]
        value = q - xh * (q * xh).mean(dims, keepdim=True)
        if self.mean is not None:
            value -= q.mean(dims, keepdim=True)
        return value.mul_(self._reciprocal()).reshape(s.shape)

    def _pull_x_diagonal(self, m: Tensor) -> Tensor:
        q, xh, dims = self._scaled(m, True).reshape(self.view), self._grouped(), self.dims
        count = prod(self.view[d] for d in dims)
        square = xh.square()
        others = square * (q * square).sum(dims, keepdim=True)
        own = square
        if self.mean is not None:
            others += q.sum(dims, keepdim=True) + 2 * xh * (q * xh).sum(dims, keepdim=True)
            own = own + 1
        value = q * (1 - own * (2 / count)) + others / count**2
        return (value * self._reciprocal().square()).reshape(m.shape)


@register_rule("aten::native_layer_norm", "aten::_fused_rms_norm")
class LayerNorm(OwnStatistics):
    """Over the last dimensions. RMSNorm subtracts no mean and has no bias."""

    def __init__(
        self,
        call: Call,
        x: Operand,
        shape: Sequence[int],
        weight: Operand | None,
        *rest: Any,
        **kwargs: Any,
    ) -> None:
        rank = len(x.shape)
        bias = rest[0] if rest and isinstance(rest[0], Operand) else None
        self.view, self.dims = x.shape, tuple(range(rank - len(shape), rank))
        super().__init__(call, x, weight, bias, tuple(shape), self.dims)
        *mean, rstd = call.outputs[1:]
        self.mean = call.keep(mean[0]) if mean else None
        self.rstd = call.keep(rstd)


@register_rule("aten::native_group_norm")
class GroupNorm(OwnStatistics):
    """Over groups of channels and all positions, in each row of dimension 0."""

    def __init__(
        self,
        call: Call,
        x: Operand,
        weight: Operand | None,
        bias: Operand | None,
        rows: int,
        channels: int,
        positions: int,
        groups: int,
        eps: float,
    ) -> None:
        inside = range(1, len(x.shape))
        self.view, self.dims = (rows, groups, channels // groups * positions), (2,)
        super().__init__(call, x, weight, bias, (channels, *(1 for _ in inside[1:])), inside)
        self.mean, self.rstd = (call.keep(out) for out in call.outputs[1:])


class BatchStatistics(OwnStatistics):
    """Over all dimensions but the channels'. InstanceNorm has its samples among the channels."""

    def __init__(
        self, call: Call, x: Operand, weight: Operand | None, bias: Operand | None
    ) -> None:
        self.view, self.dims = x.shape, (0, *range(2, len(x.shape)))
        super().__init__(call, x, weight, bias, _channels(x), self.dims)
        self.samples = (
            *self.samples[:1],
            *(_statistics(self.samples[0], out) for out in call.outputs[1:]),
        )
        self.mean, self.rstd = (call.keep(out) for out in call.outputs[1:3])


class RunningStatistics(Affine):
    """Each channel by constants: BatchNorm in eval mode."""

    def __init__(
        self,
        call: Call,
        x: Operand,
        weight: Operand | None,
        bias: Operand | None,
        mean: Operand,
        variance: Operand,
        eps: float,
    ) -> None:
        if mean.samples is not None or variance.samples is not None:
            raise MixesSamples("its running statistics depend on the sample")
        if mean.active or variance.active:
            raise Unsupported("its running statistics depend on parameters")
        super().__init__(call, x, weight, bias, _channels(x), ())
        self.samples = (*self.samples[:1], *(None for _ in call.outputs[1:]))
        self.mean, self.spread, self.eps = mean.kept(), variance.kept(), eps

    @property
    def rstd(self) -> Tensor:
        """One over the standard deviation of each channel."""
        return (self.spread.tensor + self.eps).rsqrt_().reshape(self.shape)

    def standardised(self) -> Tensor:
        return (self.x.tensor - self.mean.tensor.reshape(self.shape)) * self.rstd

    def _pull_x(self, s: Tensor) -> Tensor:
        return s * self._scaled(self.rstd)

    def _pull_x_diagonal(self, m: Tensor) -> Tensor:
        return m * self._scaled(self.rstd).square()


@register_rule(
    *("aten::native_batch_norm", "aten::_native_batch_norm_legit_no_training"),
    *("aten::_native_batch_norm_legit", "aten::_batch_norm_no_update"),
    *("aten::cudnn_batch_norm", "aten::miopen_batch_norm"),
)
def batch_norm(call: Call, *args: Any, **kwargs: Any) -> Rule:
    """By running statistics, or by those of the batch, as InstanceNorm runs it."""
    given = call.arguments(args, kwargs)
    x, weight, bias = (args[i] for i in range(3))
    if given.get("training", False):
        try:
            return BatchStatistics(call, x, weight, bias)
        except MixesSamples as error:
            raise MixesSamples(f"{error}; its statistics are the batch's, call eval()") from error
    eps = given["eps"] if "eps" in given else given["epsilon"]
    mean, variance = given["running_mean"], given["running_var"]
    return RunningStatistics(call, x, weight, bias, mean, variance, eps)


def _channels(x: Operand) -> tuple[int, ...]:
    return (x.shape[1], *(1 for _ in x.shape[2:]))


def _statistics(where: Samples | None, out: Tensor) -> Samples | None:
    """Samples in a statistic of each channel."""
    if where is None or where.count == 1:
        return where and follow(1, out.shape)
    return where.at(0) if out.dim() == 1 and out.numel() else None
