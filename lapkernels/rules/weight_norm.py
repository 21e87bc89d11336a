"""Weight normalisation: each slice of a weight along a dimension has a norm of its own.

w = g v / |v| is v normalised as by an RMSNorm without eps: r = sqrt(K) / |v|, weight g / sqrt(K).
"""

from __future__ import annotations

from math import prod

from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, register_rule
from lapkernels.rules.normalization import OwnStatistics


@register_rule("aten::_weight_norm_interface")
class WeightNorm(OwnStatistics):
    """Of v along dimension ``dim``, with g of one entry for each slice."""

    def __init__(self, call: Call, v: Operand, g: Operand, dim: int = 0) -> None:
        rank, self.mean = len(v.shape), None
        self.view = v.shape
        self.dims = tuple(d for d in range(rank) if d != dim % rank)
        self.root = prod(v.shape[d] for d in self.dims) ** 0.5
        super().__init__(call, v, g, None, self._aligned, self.dims)
        self.norm = call.keep(call.outputs[1])

    def by_weight(self) -> Tensor:
        return self.x.tensor / self.norm.tensor.reshape(self._aligned)

    def _reciprocal(self) -> Tensor:
        return self.root / self.norm.tensor.reshape(self._aligned)

    def _scaled(self, s: Tensor, squared: bool = False) -> Tensor:
        value = super()._scaled(s, squared)
        return value / (self.root**2 if squared else self.root)
