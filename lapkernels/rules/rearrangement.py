"""Ops that flip, rotate, repeat, crop or window a tensor: the Jacobian has entries 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, Unsupported, register_rule
from lapkernels.rules.base.samples import MixesSamples, Samples, along
from lapkernels.rules.reductions import dimensions
from lapkernels.rules.shape import Movement

aten = torch.ops.aten


class Turned(Movement):
    """One to one, along some dimensions."""

    touched: tuple[int, ...]

    def place(self, call: Call, x: Operand) -> None:
        """Samples stay in their dimension."""
        self.samples = call.place(
            x.samples, lambda where: along(where, self.touched, "it permutes entries")
        )


@register_rule("aten::flip")
class Flip(Turned):
    """Dimensions reversed."""

    def __init__(self, call: Call, x: Operand, dims: Sequence[int]) -> None:
        super().__init__(call, x)
        self.touched = dimensions(dims, len(x.shape)) if dims else ()
        self.place(call, x)

    def push(self, tensor: Tensor) -> Tensor:
        return tensor.flip(self.touched)

    def pull(self, s: Tensor) -> Tensor:
        return s.flip([1 + d for d in self.touched])


@register_rule("aten::roll")
class Roll(Turned):
    """Cyclic shift of dimensions, or of all entries in row-major order if none is given."""

    def __init__(
        self, call: Call, x: Operand, shifts: Sequence[int], dims: Sequence[int] = ()
    ) -> None:
        super().__init__(call, x)
        self.touched = dimensions(dims, len(x.shape))
        self.dims = dims and self.touched
        self.shifts = shifts
        self.place(call, x)

    def pull(self, s: Tensor) -> Tensor:
        back = [-shift for shift in self.shifts]
        if not self.dims:
            return s.flatten(1).roll(back, 1).reshape(s.shape)
        return s.roll(back, [1 + d for d in self.dims])


@register_rule("aten::rot90")
class Rotate(Turned):
    """Rotation of a plane by k times 90°."""

    def __init__(self, call: Call, x: Operand, k: int = 1, dims: Sequence[int] = (0, 1)) -> None:
        super().__init__(call, x)
        self.k = k
        self.touched = dimensions(dims, len(x.shape))
        self.place(call, x)

    def pull(self, s: Tensor) -> Tensor:
        return s.rot90(-self.k, [1 + d for d in self.touched])


@register_rule("aten::pixel_shuffle", "aten::pixel_unshuffle")
class PixelShuffle(Turned):
    """Channels into positions, or back."""

    def __init__(self, call: Call, x: Operand, factor: int) -> None:
        super().__init__(call, x)
        rank = len(x.shape)
        self.touched = tuple(range(rank - 3, rank))
        self.place(call, x)
        self.factor = factor
        self.up = call.name == "aten::pixel_shuffle"

    def pull(self, s: Tensor) -> Tensor:
        back = aten.pixel_unshuffle if self.up else aten.pixel_shuffle
        return back(s, self.factor)


@register_rule("aten::channel_shuffle", "aten::native_channel_shuffle")
class ChannelShuffle(Turned):
    """Channels [groups, C / groups] in the order [C / groups, groups]."""

    def __init__(self, call: Call, x: Operand, groups: int) -> None:
        super().__init__(call, x)
        self.touched = (1,)
        self.place(call, x)
        self.groups = groups

    def pull(self, s: Tensor) -> Tensor:
        parts = s.unflatten(2, (-1, self.groups))
        return parts.transpose(2, 3).flatten(2, 3)


@register_rule("aten::tril", "aten::triu")
class Triangle(Movement):
    """Zeros above or below a diagonal of the last two dimensions."""

    def __init__(self, call: Call, x: Operand, diagonal: int = 0) -> None:
        super().__init__(call, x)
        rank = len(x.shape)
        dims = (rank - 2, rank - 1)
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it cuts"))
        self.cut = aten.tril if call.name == "aten::tril" else aten.triu
        self.offset = diagonal

    def pull(self, s: Tensor) -> Tensor:
        return self.cut(s, self.offset)


@register_rule("aten::repeat")
class Repeat(Movement):
    """The tensor several times along each dimension, and along new ones in front."""

    def __init__(self, call: Call, x: Operand, repeats: Sequence[int]) -> None:
        super().__init__(call, x)
        new = len(repeats) - len(x.shape)
        sizes = (*(1 for _ in range(new)), *x.shape)
        self.parts = [n for pair in zip(repeats, sizes, strict=True) for n in pair]

        def place(where: Samples) -> Samples:
            dim = where.dim + new
            return Samples(where.count, dim, where.outer * repeats[dim], where.inner)

        self.samples = call.place(x.samples, place)

    def pull(self, s: Tensor) -> Tensor:
        dims = range(1, 1 + len(self.parts), 2)
        value = s.reshape(s.shape[0], *self.parts)
        return (value.sum(tuple(dims)) if dims else value).reshape(s.shape[0], *self.shape)


@register_rule("aten::unfold")
class Windows(Movement):
    """Windows of a dimension, their entries in a new last dimension."""

    def __init__(self, call: Call, x: Operand, dim: int, size: int, step: int) -> None:
        super().__init__(call, x)
        dims = dimensions(dim, len(x.shape))
        self.samples = call.place(x.samples, lambda where: along(where, dims, "it windows"))
        self.dim, self.size, self.step = dims[0], size, step

    def pull(self, s: Tensor) -> Tensor:
        shape = [s.shape[0], *self.shape]
        return aten.unfold_backward(s.contiguous(), shape, 1 + self.dim, self.size, self.step)


@register_rule("aten::diagonal")
class Diagonal(Movement):
    """The diagonal of two dimensions, in a new last dimension."""

    def __init__(
        self, call: Call, x: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1
    ) -> None:
        super().__init__(call, x)
        self.dims = dimensions([dim1, dim2], len(x.shape))
        self.offset = offset
        self.samples = call.place(x.samples, lambda where: where.without(self.dims, False))

    def pull(self, s: Tensor) -> Tensor:
        out = s.new_zeros(s.shape[0], *self.shape)
        out.diagonal(self.offset, *(1 + d for d in self.dims)).copy_(s)
        return out


@register_rule("aten::diag_embed")
class DiagonalMatrix(Movement):
    """The last dimension as the diagonal of two new ones."""

    def __init__(
        self, call: Call, x: Operand, offset: int = 0, dim1: int = -2, dim2: int = -1
    ) -> None:
        super().__init__(call, x)
        self.dims = dimensions([dim1, dim2], call.out.dim())
        self.offset = offset
        others = [d for d in range(call.out.dim()) if d not in self.dims]

        def place(where: Samples) -> Samples:
            along(where, [len(x.shape) - 1], "a diagonal")
            return where.at(others[where.dim])

        self.samples = call.place(x.samples, place)

    def pull(self, s: Tensor) -> Tensor:
        return s.diagonal(self.offset, *(1 + d for d in self.dims))


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

    def pull(self, s: Tensor) -> Tensor:
        count = s[0].numel() if s.shape[0] else 0
        places = torch.arange(torch.Size(self.shape).numel(), device=s.device)
        index = self._view(places).reshape(-1)
        out = s.new_zeros(s.shape[0], len(places))
        return out.index_add_(1, index, s.reshape(s.shape[0], count)).reshape(-1, *self.shape)


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
