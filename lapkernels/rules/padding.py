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
    f"aten::{kind}_pad{spatial}d": spatial
    for kind in ("reflection", "replication")
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


@register_rule(*_COPIED)
class CopiedPad(Local):
    """Padding with entries near the border: reflect, replicate, circular."""

    def __init__(self, call: Call, x: Operand, padding: Sequence[int]) -> None:
        spatial, shape, sides = _COPIED[call.name], x.shape, list(padding)
        self.spatial, self.sides = spatial, sides
        self.mode = "reflect" if "reflection" in call.name else "replicate"
        name = call.name.removeprefix("aten::") + "_backward"
        back: Callable[..., Tensor] = getattr(aten, name)

        def pull(s: Tensor) -> Tensor:
            folded = fold(s, spatial)
            like = s.new_empty(()).expand(folded.shape[0], *shape[-spatial - 1 :])
            return back(folded.contiguous(), like, sides).reshape(-1, *shape)

        super().__init__(call, x, window_dims(shape, spatial), pull)


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
