"""Softmax and its logarithm along a dimension, and gated linear units.

softmax      d y_o / d x_i = y_o (delta_oi - y_i), 0 where a row is masked as a whole
log softmax  d y_o / d x_i = delta_oi - p_i,    p = exp(y)
glu          y = a sigmoid(b), x = (a, b)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapkernels.ops.base.precision import wide
from lapkernels.rules.base.rule import Call, Operand, Rule, register_rule
from lapkernels.rules.base.samples import along
from lapkernels.rules.reductions import dimensions

aten = torch.ops.aten


@register_rule("aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax")
class Softmax(Rule):
    """m_i = y_i² ((1 - 2 y_i) m_i + sum_o y_o² m_o); m_i = (1 - 2 p_i) m_i + p_i² sum_o m_o."""

    repeatable = True
    reads_input = False

    def __init__(self, call: Call, x: Operand, dim: int, *_: Any, **__: Any) -> None:
        super().__init__()
        dims = dimensions(dim, len(x.shape))
        self.dim = dims[0] if dims else 0
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it normalises"))
        self.y = call.kept_output()
        self.dtype = wide(x.tensor.dtype)
        self.log = call.name == "aten::_log_softmax"

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        y = self.y.tensor
        if y.dim() == 0:
            return torch.zeros_like(s)
        q = s if self.log else s * y
        total = q.sum(1 + self.dim, keepdim=True)
        return (q - (y.exp() if self.log else y) * total).to(self.dtype)

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor:
        y = self.y.tensor
        if y.dim() == 0:
            return torch.zeros_like(m)
        if self.log:
            p = y.exp()
            value = (1 - 2 * p) * m + p.square() * m.sum(self.dim, keepdim=True)
        else:
            square = y.square()
            others = (square * m).sum(self.dim, keepdim=True)
            value = square * ((1 - 2 * y) * m + others)
        return value.to(self.dtype)


@register_rule("aten::glu")
class GatedLinear(Rule):
    """First half times the sigmoid of the second, along a dimension."""

    def __init__(self, call: Call, x: Operand, dim: int = -1) -> None:
        super().__init__()
        dims = dimensions(dim, len(x.shape))
        self.dim = dims[0]
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it gates"))
        self.x = x.kept()

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        return torch.cat([s * d for d in self._derivatives()], 1 + self.dim)

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor:
        return torch.cat([m * d.square() for d in self._derivatives()], self.dim)

    def _derivatives(self) -> tuple[Tensor, Tensor]:
        a, b = self.x.tensor.chunk(2, self.dim)
        gate = b.sigmoid()
        return gate, a * gate * (1 - gate)
