"""Resizing of images and sequences, channel by channel.

Nearest-neighbour copies entries. All others are linear and work along one dimension after the
other: J = A_1 ⊗ A_2 ⊗ ..., with A_d [out, in] the interpolation matrix of dimension d, so that
J∘J = (A_1∘A_1) ⊗ (A_2∘A_2) ⊗ ... .
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops import serving
from lapkernels.rules.base.rule import Call, Operand, Rule, Unsupported, register_rule
from lapkernels.rules.base.samples import along
from lapkernels.rules.pooling import fold, window_dims

aten = torch.ops.aten
_NEAREST = {
    f"aten::{kind}{spatial}d": spatial
    for kind in ("upsample_nearest", "_upsample_nearest_exact")
    for spatial in (1, 2, 3)
}
_LINEAR = {
    **{"aten::upsample_linear1d": 1, "aten::upsample_bilinear2d": 2},
    **{"aten::upsample_bicubic2d": 2, "aten::upsample_trilinear3d": 3},
    **{"aten::_upsample_bilinear2d_aa": 2, "aten::_upsample_bicubic2d_aa": 2},
}
_SPATIAL = {**_NEAREST, **_LINEAR}


class Resize(Rule):
    """Columns by torch's own transpose, all at once."""

    repeatable = True
    reads_input = False

    def __init__(self, call: Call, x: Operand, size: Sequence[int] | None, *args: Any) -> None:
        super().__init__()
        self.spatial = _SPATIAL[call.name]
        if (
            size is None
            or len(x.shape) != self.spatial + 2
            or any(isinstance(a, list) for a in args)
        ):
            raise Unsupported("a resize given by scale factors only")
        dims = window_dims(x.shape, self.spatial)
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it resizes"))
        self.shape, self.size, self.args = x.shape, list(size), args
        self.forward: Callable[..., Tensor] = call.op
        name = call.name.removeprefix("aten::") + "_backward"
        self.back: Callable[..., Tensor] = getattr(aten, name)

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        folded = fold(s, self.spatial)
        shape = [folded.shape[0], *self.shape[1:]]
        value = self.back(folded.contiguous(), self.size, shape, *self.args)
        return value.reshape(-1, *self.shape)


@register_rule(*_NEAREST)
class Nearest(Resize):
    """Copies of entries, adjacent where sizes grow by whole factors."""

    def __init__(self, call: Call, x: Operand, size: Sequence[int] | None, *args: Any) -> None:
        super().__init__(call, x, size, *args)
        factors = [out // max(1, n) for out, n in zip(self.size, x.shape[2:], strict=True)]
        given = [factors, args or [None] * self.spatial, self.size, x.shape[2:]]
        self.factors = factors
        self.is_whole = all(
            out == factor * n and scale in (None, factor) and serving.copies_stacked(factor)
            for factor, scale, out, n in zip(*given, strict=True)
        )

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        if not self.is_whole:
            return super().pull(s)
        for d, factor in enumerate(self.factors, s.dim() - self.spatial):
            every = [s[(*[slice(None)] * d, slice(k, None, factor))] for k in range(factor)]
            s = sum(every[1:], every[0])
        return s

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor:
        return self.pull(m.unsqueeze(0))[0]


@register_rule(*_LINEAR)
class Interpolated(Resize):
    """Linear, cubic, with or without smoothing."""

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor:
        for d in range(self.spatial):
            a = self.matrix(d, m).square()
            m = (m.movedim(2 + d, -1) @ a).movedim(-1, 2 + d)
        return m

    def matrix(self, d: int, like: Tensor) -> Tensor:
        """A_d: unit vectors along dimension d, constant along the others, whose rows sum to one."""
        sizes = self.shape[2:]
        unit = torch.eye(sizes[d], dtype=like.dtype, device=like.device)
        shape = [sizes[d] if i == d else 1 for i in range(self.spatial)]
        images = unit.reshape(sizes[d], 1, *shape).expand(sizes[d], 1, *sizes).contiguous()
        out = self.forward(images, self.size, *self.args)[:, 0]
        for i in reversed(range(self.spatial)):
            if i != d:
                out = out.select(1 + i, 0)
        return out.mT
