"""Rows of a weight chosen by an index."""

from __future__ import annotations

from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, Rule, register_rule, whole_weight
from lapkernels.rules.base.samples import MixesSamples
from lapkernels.rules.base.uses import EmbeddingUse


@register_rule("aten::embedding")
class Embedding(Rule):
    """out[...] = weight[index[...]]."""

    repeatable = True

    def __init__(
        self,
        call: Call,
        weight: Operand,
        index: Operand,
        padding_idx: int = -1,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        if scale_grad_by_freq:
            raise MixesSamples("scale_grad_by_freq scales gradients by counts of the whole batch")
        whole_weight(call, weight)
        self.samples = (call.move(index.samples, lambda samples: samples),)
        where = self.samples[0]
        kept = self.index = index.kept()
        self.shape, self.padding = weight.shape, padding_idx
        if weight.active and where is not None:
            self.uses[0] = EmbeddingUse(weight.shape, where, lambda: kept.tensor, padding_idx)

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index:
            return None
        rows = self.index.tensor.reshape(-1)
        entries = s.reshape(s.shape[0], len(rows), -1)
        if self.padding >= 0:
            entries = entries * (rows != self.padding).to(entries.dtype).unsqueeze(-1)
        return s.new_zeros(s.shape[0], *self.shape).index_add_(1, rows, entries)

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        value = self.pull(m.unsqueeze(0), index)
        return None if value is None else value[0]
