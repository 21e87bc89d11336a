"""Padding of the last dimensions, and windows of images as columns: the Jacobian is of 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, register_rule
from lapkernels.rules.base.samples import MixesSamples, Samples
from lapkernels.rules.pooling import fold, window_dims
from lapkernels.rules.rearrangement import Local
from lapkernels.rules.shape import Movement

aten = torch.ops.aten
_COPIED = {
    f"aten::{kind}_pad{spatial}d": mode
    for kind, mode in (("reflection", "reflect"), ("replication", "replicate"))
    for spatial in (1, 2, 3)
}


@register_rule("aten::constant_pad_nd")
class ConstantPad(Local):
    """Constant padding; negative padding crops."""

    def __init__(self, call: Call, x: Operand, pad: Sequence[int], value: float = 0) -> None:
        self.sides = list(pad)
        rank, back = len(x.shape), [-size for size in pad]
        dims = [rank - 1 - i // 2 for i, size in enumerate(pad) if size != 0]
        super().__init__(call, x, dims, lambda s: aten.constant_pad_nd(s, back))


class CopiedPad(Local):
    """Padding with entries near the border, or with ``mode`` circular near the opposite one."""

    def __init__(self, call: Call, x: Operand, padding: Sequence[int], mode: str) -> None:
        self.sides, self.mode = list(padding), mode
        self.spatial = len(self.sides) // 2
        super().__init__(call, x, window_dims(x.shape, self.spatial))
        if mode == "circular":
            self.period = x.shape[2:]

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        if self.mode == "circular":
            return self._circular(s)
        name = {"reflect": "reflection", "replicate": "replication"}[self.mode]
        back: Callable[..., Tensor] = getattr(aten, f"{name}_pad{self.spatial}d_backward")
        folded = fold(s, self.spatial)
        like = s.new_empty(()).expand(folded.shape[0], *self.shape[-self.spatial - 1 :])
        return back(folded.contiguous(), like, self.sides).reshape(-1, *self.shape)

    def _circular(self, s: Tensor) -> Tensor:
        for d in range(self.spatial):
            dim, size = s.dim() - 1 - d, self.shape[-1 - d]
            before, after = self.sides[2 * d : 2 * d + 2]
            out = s.narrow(dim, before, size).clone()
            out.narrow(dim, size - before, before).add_(s.narrow(dim, 0, before))
            out.narrow(dim, 0, after).add_(s.narrow(dim, before + size, after))
            s = out
        return s


@register_rule(*_COPIED)
def copied_pad(call: Call, x: Operand, padding: Sequence[int]) -> CopiedPad:
    """Reflection and replication."""
    return CopiedPad(call, x, padding, _COPIED[call.name])


@register_rule("aten::pad")
def pad(
    call: Call,
    x: Operand,
    padding: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> ConstantPad | CopiedPad:
    """Padding in any mode."""
    if mode == "constant":
        return ConstantPad(call, x, padding, value or 0.0)
    return CopiedPad(call, x, padding, mode)


@register_rule("aten::im2col", "aten::col2im")
class ImageColumns(Movement):
    """Windows of images as columns, and the sum of such windows: each is the other's transpose."""

    def __init__(self, call: Call, x: Operand, *args: Sequence[int]) -> None:
        shape, given = x.shape, args[-4:]
        size = None if len(args) > 4 else list(x.shape[-2:])

        def place(where: Samples) -> Samples:
            if where.dim != 0 or len(shape) != (4 if size else 3):
                raise MixesSamples("its windows need samples in dimension 0")
            return where

        def pull(s: Tensor) -> Tensor:
            folded = s if s.dim() == (3 if size else 4) else s.flatten(0, 1)
            value = aten.col2im(folded, size, *given) if size else aten.im2col(folded, *given)
            return value.reshape(-1, *shape)

        super().__init__(call, x, place, pull)
