"""Ops that flip, rotate, repeat, crop or window a tensor: the Jacobian has entries 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, Unsupported, register_rule
from lapkernels.rules.base.samples import MixesSamples, Samples, along
from lapkernels.rules.reductions import dimensions
from lapkernels.rules.shape import Movement, behind

aten = torch.ops.aten


class Local(Movement):
    """An op that works along some dimensions, in which there are no samples."""

    def __init__(
        self,
        call: Call,
        x: Operand,
        dims: Sequence[int],
        pull: Callable[[Tensor], Tensor] | None = None,
        push: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        what = f"{call.name.removeprefix('aten::')} works"
        super().__init__(call, x, lambda where: along(where, dims, what), pull, push)


@register_rule("aten::flip")
class Flip(Local):
    """Dimensions reversed."""

    def __init__(self, call: Call, x: Operand, dims: Sequence[int]) -> None:
        own = dimensions(dims, len(x.shape)) if dims else ()
        super().__init__(
            call, x, own, lambda s: s.flip(behind(own)), lambda tensor: tensor.flip(own)
        )


@register_rule("aten::roll")
class Roll(Local):
    """Cyclic shift of dimensions, or of all entries in row-major order if none is given."""

    def __init__(
        self, call: Call, x: Operand, shifts: Sequence[int], dims: Sequence[int] = ()
    ) -> None:
        own, back = dimensions(dims, len(x.shape)), [-shift for shift in shifts]

        def pull(s: Tensor) -> Tensor:
            return s.roll(back, behind(own)) if dims else s.flatten(1).roll(back, 1).view_as(s)

        super().__init__(call, x, own, pull)


@register_rule("aten::rot90")
class Rotate(Local):
    """Rotation of a plane by k times 90°."""

    def __init__(self, call: Call, x: Operand, k: int = 1, dims: Sequence[int] = (0, 1)) -> None:
        own = dimensions(dims, len(x.shape))
        super().__init__(call, x, own, lambda s: s.rot90(-k, behind(own)))


@register_rule("aten::pixel_shuffle", "aten::pixel_unshuffle")
class PixelShuffle(Local):
    """Channels into positions, or back."""

    def __init__(self, call: Call, x: Operand, factor: int) -> None:
        rank, up = len(x.shape), call.name == "aten::pixel_shuffle"
        self.factor, self.up = factor, up
        back = aten.pixel_unshuffle if up else aten.pixel_shuffle
        super().__init__(call, x, range(rank - 3, rank), lambda s: back(s, factor))


@register_rule("aten::channel_shuffle", "aten::native_channel_shuffle")
class ChannelShuffle(Local):
    """Channels [groups, C / groups] in the order [C / groups, groups]."""

    def __init__(self, call: Call, x: Operand, groups: int) -> None:
        super().__init__(
            call, x, [1], lambda s: s.unflatten(2, (-1, groups)).transpose(2, 3).flatten(2, 3)
        )


@register_rule("aten::tril", "aten::triu")
class Triangle(Local):
    """Zeros above or below a diagonal of the last two dimensions."""

    def __init__(self, call: Call, x: Operand, diagonal: int = 0) -> None:
        rank, cut = len(x.shape), aten.tril if call.name == "aten::tril" else aten.triu
        super().__init__(call, x, (rank - 2, rank - 1), lambda s: cut(s, diagonal))


@register_rule("aten::repeat")
class Repeat(Movement):
    """The tensor several times along each dimension, and along new ones in front."""

    def __init__(self, call: Call, x: Operand, repeats: Sequence[int]) -> None:
        shape, new = x.shape, len(repeats) - len(x.shape)
        sizes = (*(1 for _ in range(new)), *shape)
        parts = [n for pair in zip(repeats, sizes, strict=True) for n in pair]

        def place(where: Samples) -> Samples:
            dim = where.dim + new
            return Samples(where.count, dim, where.outer * repeats[dim], where.inner)

        def pull(s: Tensor) -> Tensor:
            value, dims = s.reshape(s.shape[0], *parts), tuple(range(1, 1 + len(parts), 2))
            return (value.sum(dims) if dims else value).reshape(s.shape[0], *shape)

        super().__init__(call, x, place, pull)


@register_rule("aten::unfold")
class Windows(Local):
    """Windows of a dimension, their entries in a new last dimension."""

    def __init__(self, call: Call, x: Operand, dim: int, size: int, step: int) -> None:
        shape, own = x.shape, dimensions(dim, len(x.shape))
        window = (1 + own[0], size, step)

        def pull(s: Tensor) -> Tensor:
            return aten.unfold_backward(s.contiguous(), [s.shape[0], *shape], *window)

        super().__init__(call, x, own, pull)


@register_rule("aten::diagonal")
class Diagonal(Movement):
    """The diagonal of two dimensions, in a new last dimension."""

    def __init__(
        self, call: Call, x: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1
    ) -> None:
        shape, own = x.shape, dimensions([dim1, dim2], len(x.shape))

        def pull(s: Tensor) -> Tensor:
            out = s.new_zeros(s.shape[0], *shape)
            out.diagonal(offset, *behind(own)).copy_(s)
            return out

        super().__init__(call, x, lambda where: where.without(own, False), pull)


@register_rule("aten::diag_embed")
class DiagonalMatrix(Movement):
    """The last dimension as the diagonal of two new ones."""

    def __init__(
        self, call: Call, x: Operand, offset: int = 0, dim1: int = -2, dim2: int = -1
    ) -> None:
        own, last = dimensions([dim1, dim2], call.out.dim()), len(x.shape) - 1
        others = [d for d in range(call.out.dim()) if d not in own]

        def place(where: Samples) -> Samples:
            return where.at(others[along(where, [last], "a diagonal").dim])

        super().__init__(call, x, place, lambda s: s.diagonal(offset, *behind(own)))


@register_rule("aten::as_strided")
class Strided(Movement):
    """A view by strides of a contiguous tensor."""

    def __init__(
        self,
        call: Call,
        x: Operand,
        size: Sequence[int],
        stride: Sequence[int],
        offset: int | None = None,
    ) -> None:
        super().__init__(call, x)
        if not x.tensor.is_contiguous():
            raise Unsupported("as_strided of a tensor that is not contiguous")
        self.view = (list(size), list(stride))
        self.offset = (x.tensor.storage_offset() if offset is None else offset) - int(
            x.tensor.storage_offset()
        )
        if self.offset < 0:
            raise Unsupported("as_strided outside of the tensor")
        self.samples = call.place(
            x.samples, lambda where: located(where, self._view(labels(where, x)))
        )

    def _view(self, tensor: Tensor) -> Tensor:
        return tensor.as_strided(*self.view, self.offset)

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        count = s[0].numel() if s.shape[0] else 0
        flat = torch.arange(torch.Size(self.shape).numel(), device=s.device)
        read = self._view(flat).reshape(-1)
        out = s.new_zeros(s.shape[0], len(flat))
        return out.index_add_(1, read, s.reshape(s.shape[0], count)).reshape(-1, *self.shape)


def labels(where: Samples, x: Operand) -> Tensor:
    """The sample of each entry of an operand."""
    found = torch.zeros(x.shape, dtype=torch.long, device=x.tensor.device)
    parts = where.split(found)
    parts += torch.arange(where.count, device=found.device).reshape(-1, *(1,) * (parts.dim() - 1))
    return found


def located(where: Samples, found: Tensor) -> Samples:
    """Samples of a result, from the sample of each of its entries."""
    for candidate in candidates(where.count, found.shape):
        rows = candidate.split(found)
        own = torch.arange(where.count, device=found.device)
        if torch.equal(rows, own.reshape(-1, *(1,) * (rows.dim() - 1)).expand_as(rows)):
            return candidate
    raise MixesSamples("its result holds the samples in no order that can be followed")


def candidates(count: int, shape: Sequence[int]) -> list[Samples]:
    """All possible layouts of ``count`` samples in a tensor of this shape."""
    return [
        Samples(count, dim, size // (count * inner), inner)
        for dim, size in enumerate(shape)
        for inner in range(1, size // count + 1)
        if size % (count * inner) == 0
    ]
