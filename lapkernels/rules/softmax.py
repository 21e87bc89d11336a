"""Softmax and its logarithm along a dimension, and gated linear units.

softmax      d y_o / d x_i = y_o (delta_oi - y_i)
log softmax  d y_o / d x_i = delta_oi - p_i,    p = exp(y)
glu          y = a sigmoid(b), x = (a, b)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, Rule, register_rule
from lapkernels.rules.base.samples import along
from lapkernels.rules.reductions import dimensions

aten = torch.ops.aten


@register_rule("aten::_softmax", "aten::_log_softmax")
class Softmax(Rule):
    """m_i = y_i² ((1 - 2 y_i) m_i + sum_o y_o² m_o); m_i = (1 - 2 p_i) m_i + p_i² sum_o m_o."""

    repeatable = True

    reads_input = False

    def __init__(self, call: Call, x: Operand, dim: int, half_to_float: bool) -> None:
        super().__init__()
        rank = len(x.shape)
        self.dim = dimensions(dim, rank)[0] if rank else 0
        dims = dimensions(dim, rank)
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it normalises"))
        self.y = call.kept_output()
        self.dtype = x.tensor.dtype
        self.log = call.name == "aten::_log_softmax"

    def columns(self, s: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        one, y = s[0], self.y.tensor
        assert one is not None
        dim = 1 + self.dim if y.dim() else 0
        if y.dim() == 0:
            return [torch.zeros_like(one)]
        if self.log:
            value = one - y.exp() * one.sum(dim, keepdim=True)
        else:
            q = one * y
            value = q - y * q.sum(dim, keepdim=True)
        return [value.to(self.dtype)]

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        one, y = m[0], self.y.tensor
        assert one is not None
        if y.dim() == 0:
            return [torch.zeros_like(one)]
        if self.log:
            p = y.exp()
            value = (1 - 2 * p) * one + p.square() * one.sum(self.dim, keepdim=True)
        else:
            square = y.square()
            others = (square * one).sum(self.dim, keepdim=True)
            value = square * ((1 - 2 * y) * one + others)
        return [value.to(self.dtype)]


@register_rule("aten::glu")
class GatedLinear(Rule):
    """First half times the sigmoid of the second, along a dimension."""

    def __init__(self, call: Call, x: Operand, dim: int = -1) -> None:
        super().__init__()
        dims = dimensions(dim, len(x.shape))
        self.dim = dims[0]
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it gates"))
        self.x = x.kept()

    def columns(self, s: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        assert s[0] is not None
        da, db = self._derivatives()
        return [torch.cat([s[0] * da, s[0] * db], 1 + self.dim)]

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        assert m[0] is not None
        da, db = self._derivatives()
        return [torch.cat([m[0] * da.square(), m[0] * db.square()], self.dim)]

    def _derivatives(self) -> tuple[Tensor, Tensor]:
        a, b = self.x.tensor.chunk(2, self.dim)
        gate = b.sigmoid()
        return gate, a * gate * (1 - gate)
