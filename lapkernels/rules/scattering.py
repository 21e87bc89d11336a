"""Scatter along a dimension: out = x, with entries of a source written or added.

Operands are x, the index and, if it is a tensor, the source.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from lapkernels.rules.base.rule import Call, Kept, Operand, Unsupported, register_rule
from lapkernels.rules.base.samples import MixesSamples, Samples, along, common
from lapkernels.rules.base.uses import own_copy
from lapkernels.rules.reductions import dimensions
from lapkernels.rules.shape import Movement

_WHOLE = ("aten::index_add", "aten::index_copy", "aten::index_fill")


@register_rule("aten::scatter", "aten::scatter_add", *_WHOLE)
class Scatter(Movement):
    """scatter sends single entries, index_add and index_copy whole slices of the source."""

    repeatable = False

    def __init__(
        self,
        call: Call,
        x: Operand,
        dim: int,
        index: Operand,
        source: Any = None,
        *,
        alpha: float = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(call, x)
        if kwargs or alpha != 1 or source is None:
            raise Unsupported("a reduction other than the sum, or a factor")
        dims = dimensions(dim, len(x.shape))
        if not dims:
            raise Unsupported("a scatter of a number")
        self.dim = dims[0]
        self.index: Kept = index.kept()
        self.adds = call.name in ("aten::scatter_add", "aten::index_add")
        self.whole = call.name in _WHOLE
        operands = [x, *([] if self.whole else [index])]
        if isinstance(source, Operand) and source.tensor.dim() == len(x.shape):
            operands.append(source)
        elif isinstance(source, Operand) and (source.active or source.samples is not None):
            raise Unsupported("a source of another rank")
        if not self.whole and isinstance(source, Operand) and source.shape != index.shape:
            raise Unsupported("a source with entries that are not sent")
        if self.whole and index.samples is not None and call.count > 1:
            raise MixesSamples("its index depends on the sample")

        def place(operand: Operand, where: Samples) -> Samples:
            if operand.shape[where.dim] != x.shape[where.dim]:
                raise MixesSamples("its index leaves out samples")
            return along(where, dims, "it sends")

        placed = common(call.place(one.samples, partial(place, one))[0] for one in operands)
        self.samples = (placed,)
        for operand, pull in ((x, self._old), (source, self._new)):
            if placed is not None and isinstance(operand, Operand) and operand.is_weight:
                at = next(i for i, other in enumerate(call.operands) if other is operand)
                self.uses[at] = own_copy(operand.shape, placed, pull)

    def _old(self, s: Tensor) -> Tensor:
        if self.adds:
            return s
        index = self.index.tensor
        if self.whole:
            return s.index_fill(1 + self.dim, index.reshape(-1), 0)
        return s.scatter(1 + self.dim, index.expand(s.shape[0], *index.shape), 0)

    def _new(self, s: Tensor) -> Tensor:
        index = self.index.tensor
        if self.whole:
            return s.index_select(1 + self.dim, index.reshape(-1))
        return s.gather(1 + self.dim, index.expand(s.shape[0], *index.shape))

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index == 0:
            return self._old(s)
        return self._new(s) if index == 2 else None
