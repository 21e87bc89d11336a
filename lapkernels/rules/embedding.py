"""Rows of a weight chosen by an index."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, Rule, Unsupported, register_rule
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

    def columns(self, s: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        one = s[0]
        if one is None or not wanted[0]:
            return [None, None]
        index = self.index.tensor.reshape(-1)
        entries = one.reshape(one.shape[0], len(index), -1)
        if self.padding >= 0:
            entries = entries * (index != self.padding).to(entries.dtype).unsqueeze(-1)
        out = one.new_zeros(one.shape[0], *self.shape)
        return [out.index_add_(1, index, entries), None]

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        (one, _) = self.columns([m[0] if m[0] is None else m[0].unsqueeze(0)], wanted)
        return [None if one is None else one[0], None]


def whole_weight(call: Call, *operands: Operand | None) -> None:
    """Weights must be the same for all samples; in a batch of one autograd serves."""
    if any(operand is not None and operand.samples is not None for operand in operands):
        if call.count == 1:
            raise Unsupported("its weight depends on the sample")
        raise MixesSamples("its weight depends on the sample")
