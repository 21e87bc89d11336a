"""Pooling over the last two or three dimensions, channel by channel.

Max pools copy entries: the Jacobian has entries 0 and 1. An average has one weight w_o for all
entries of its window, so that (J∘J)^T m = J^T (w m).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, Rule, register_rule
from lapkernels.rules.base.samples import along, elementwise
from lapkernels.rules.shape import Movement

aten = torch.ops.aten

_MAX = {
    **{"aten::max_pool2d_with_indices": 2, "aten::max_pool3d_with_indices": 3},
    **{"aten::adaptive_max_pool2d": 2, "aten::adaptive_max_pool3d": 3},
    **{"aten::fractional_max_pool2d": 2, "aten::fractional_max_pool3d": 3},
}
_AVERAGE = {"aten::avg_pool2d": 2, "aten::avg_pool3d": 3}
_ADAPTIVE = {"aten::_adaptive_avg_pool2d": 2, "aten::_adaptive_avg_pool3d": 3}


def window_dims(shape: Sequence[int], spatial: int) -> range:
    """The last dimensions, which a pool or a resize works along."""
    return range(len(shape) - spatial, len(shape))


def fold(s: Tensor, spatial: int) -> Tensor:
    """[V, ..., C, *positions] as [B, C, *positions]."""
    return s.reshape(-1, *s.shape[-spatial - 1 :])


@register_rule(*_MAX)
class MaxPool(Movement):
    """The largest entry of each window; the second result is its index in the channel."""

    makes_new = True

    def __init__(self, call: Call, x: Operand, *args: Any, **kwargs: Any) -> None:
        self.spatial = _MAX[call.name]
        dims = window_dims(x.shape, self.spatial)
        super().__init__(call, x, lambda where: along(where, dims, "it pools"))
        self.index = call.keep(call.outputs[1])
        given = call.arguments((x, *args), kwargs)
        self.arguments = {name: value for name, value in given.items() if value is not x}

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index:
            return None
        flat = s.flatten(-self.spatial)
        largest = self.index.tensor.flatten(-self.spatial).expand(flat.shape)
        out = s.new_zeros(*flat.shape[:-1], prod(self.shape[-self.spatial :]))
        return out.scatter_add_(-1, largest, flat).reshape(s.shape[0], *self.shape)


class Average(Rule):
    """Means over windows; ``backward`` is J^T on [B, C, *positions], ``weight`` is w_o."""

    repeatable = True
    reads_input = False

    def __init__(self, call: Call, x: Operand, spatial: int) -> None:
        super().__init__()
        dims = window_dims(x.shape, spatial)
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it pools"))
        self.shape, self.spatial = x.shape, spatial

    def backward(self, s: Tensor, like: Tensor) -> Tensor:
        """J^T s; ``like`` has the shape of the result."""
        raise NotImplementedError

    def weight(self, m: Tensor) -> Tensor:
        """The weights w_o [*positions], of ``m``'s dtype and device."""
        raise NotImplementedError

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        folded = fold(s, self.spatial)
        shape = (folded.shape[0], *self.shape[-self.spatial - 1 :])
        value = self.backward(folded.contiguous(), folded.new_empty(()).expand(shape))
        return value.reshape(s.shape[0], *self.shape)

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor:
        return self.pull((m * self.weight(m)).unsqueeze(0))[0]


@register_rule(*_AVERAGE)
class AveragePool(Average):
    """Windows of one size. The divisor may leave out padding, or be given."""

    def __init__(self, call: Call, x: Operand, *args: Any, **kwargs: Any) -> None:
        super().__init__(call, x, _AVERAGE[call.name])
        given = call.arguments((x, *args), kwargs)
        names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
        self.arguments = [given[name] for name in names]
        self.divisor = given["divisor_override"]
        packet = call.name.removeprefix("aten::")
        self.forward: Callable[..., Tensor] = getattr(aten, packet)
        self.kernel: Callable[..., Tensor] = getattr(aten, packet + "_backward")

    def backward(self, s: Tensor, like: Tensor) -> Tensor:
        return self.kernel(s, like, *self.arguments, self.divisor)

    def weight(self, m: Tensor) -> Tensor:
        ones = m.new_ones(1, 1, *self.shape[-self.spatial :])
        entries = self.forward(ones, *self.arguments, 1)
        means = self.forward(ones, *self.arguments, self.divisor)
        return (means / entries)[0, 0]


@register_rule(*_ADAPTIVE)
class AdaptiveAveragePool(Average):
    """Window o of a dimension runs from floor(o in / out) to ceil((o + 1) in / out)."""

    def __init__(self, call: Call, x: Operand, output_size: Sequence[int]) -> None:
        super().__init__(call, x, _ADAPTIVE[call.name])
        self.output_size = tuple(output_size)
        name = call.name.removeprefix("aten::") + "_backward"
        self.kernel: Callable[..., Tensor] = getattr(aten, name)

    def backward(self, s: Tensor, like: Tensor) -> Tensor:
        return self.kernel(s, like)

    def weight(self, m: Tensor) -> Tensor:
        value = m.new_ones(())
        sizes = self.shape[-self.spatial :]
        for size, count in zip(sizes, self.output_size, strict=True):
            o = torch.arange(count, device=m.device)
            last = ((o + 1) * size + count - 1) // count
            value = value.unsqueeze(-1) / (last - o * size // count)
        return value


@register_rule("aten::max_unpool2d", "aten::max_unpool3d")
class MaxUnpool(Movement):
    """Max unpooling: entries go to the given indices of the channel, all others are zero."""

    def __init__(self, call: Call, x: Operand, index: Operand, *args: Any) -> None:
        super().__init__(call, x)
        self.spatial = 2 if call.name == "aten::max_unpool2d" else 3
        where = elementwise([(x.samples, x.shape), (index.samples, index.shape)], x.shape)
        dims = window_dims(x.shape, self.spatial)
        self.samples = call.place(where, lambda found: along(found, dims, "it unpools"))
        self.index = index.kept()

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index:
            return None
        read = self.index.tensor.flatten(-self.spatial)
        value = s.flatten(-self.spatial).gather(-1, read.expand(s.shape[0], *read.shape))
        return value.reshape(s.shape[0], *self.shape)
