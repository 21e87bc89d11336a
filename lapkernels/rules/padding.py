"""Padding of the last dimensions, and windows of images as columns: the Jacobian is of 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, register_rule
from lapkernels.rules.base.samples import MixesSamples, Samples, along
from lapkernels.rules.pooling import fold, window_dims
from lapkernels.rules.shape import Movement

aten = torch.ops.aten
_COPIED = {
    f"aten::{kind}_pad{spatial}d": spatial
    for kind in ("reflection", "replication")
    for spatial in (1, 2, 3)
}


@register_rule("aten::constant_pad_nd")
class ConstantPad(Movement):
    """Constant padding; negative padding crops."""

    def __init__(self, call: Call, x: Operand, pad: Sequence[int], value: float = 0) -> None:
        super().__init__(call, x)
        rank = len(x.shape)
        dims = [rank - 1 - i // 2 for i, size in enumerate(pad) if size != 0]
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it pads"))
        self.back = [-size for size in pad]

    def pull(self, s: Tensor) -> Tensor:
        return aten.constant_pad_nd(s, self.back)


@register_rule(*_COPIED)
class CopiedPad(Movement):
    """Padding with entries near the border: reflect, replicate, circular."""

    def __init__(self, call: Call, x: Operand, padding: Sequence[int]) -> None:
        super().__init__(call, x)
        self.spatial, self.padding = _COPIED[call.name], list(padding)
        dims = window_dims(x.shape, self.spatial)
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it pads"))
        name = call.name.removeprefix("aten::") + "_backward"
        self.back: Callable[..., Tensor] = getattr(aten, name)

    def pull(self, s: Tensor) -> Tensor:
        folded = fold(s, self.spatial)
        like = s.new_empty(()).expand(folded.shape[0], *self.shape[-self.spatial - 1 :])
        return self.back(folded.contiguous(), like, self.padding).reshape(-1, *self.shape)


@register_rule("aten::im2col", "aten::col2im")
class ImageColumns(Movement):
    """Windows of images as columns, and the sum of such windows: each is the other's transpose."""

    def __init__(self, call: Call, x: Operand, *args: Sequence[int]) -> None:
        super().__init__(call, x)
        *size, kernel, dilation, padding, stride = args
        self.window = (kernel, dilation, padding, stride)
        self.size = None if size else list(x.shape[-2:])

        def place(where: Samples) -> Samples:
            if where.dim != 0 or len(x.shape) != (3 if size else 4):
                raise MixesSamples("its windows need samples in dimension 0")
            return where

        self.samples = call.place(x.samples, place)

    def pull(self, s: Tensor) -> Tensor:
        unbatched = s.dim() == (3 if self.size else 4)
        folded = s if unbatched else s.flatten(0, 1)
        if self.size:
            value = aten.col2im(folded, self.size, *self.window)
        else:
            value = aten.im2col(folded, *self.window)
        return value.reshape(-1, *self.shape)
