"""Entries read or written by index: every entry of the Jacobian is 0 or 1.

The operand read from may be a weight and the index depend on the sample, as in a table lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Operand, register_rule
from lapkernels.rules.base.samples import MixesSamples, Samples, along, common
from lapkernels.rules.base.uses import CopyUse, own_copy
from lapkernels.rules.elementwise import sum_to_shape
from lapkernels.rules.rearrangement import candidates, labels, located
from lapkernels.rules.reductions import dimensions
from lapkernels.rules.shape import Movement

aten = torch.ops.aten


class Lookup(Movement):
    """Operand 0 read at an index; the other operands have no derivative."""

    def __init__(
        self, call: Call, x: Operand, where: Samples | None, pull: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__(call, x, pull=pull)
        self.samples = tuple(where for _ in call.outputs)
        if where is not None and x.is_weight:
            self.uses[0] = CopyUse(x.shape, where, pull)


@register_rule("aten::index_select")
class IndexSelect(Lookup):
    """Entries of one dimension in a given order."""

    def __init__(self, call: Call, x: Operand, dim: int, index: Operand) -> None:
        shape, dims, read = x.shape, dimensions(dim, len(x.shape)), index.kept()
        at = dims[0] if dims else 0
        own = call.place(x.samples, lambda where: along(where, dims, "it selects"))[0]
        by_index = call.place(index.samples, lambda where: where.at(at))[0]

        def pull(s: Tensor) -> Tensor:
            out = s.new_zeros(s.shape[0], *shape)
            return out.index_add_(1 + at, read.tensor.reshape(-1), s.reshape(s.shape))

        super().__init__(call, x, common([own, by_index]), pull)


@register_rule("aten::gather")
class Gather(Lookup):
    """out[i, j] = x[i, index[i, j]], along any dimension."""

    def __init__(
        self, call: Call, x: Operand, dim: int, index: Operand, *, sparse_grad: bool = False
    ) -> None:
        shape, dims, read = x.shape, dimensions(dim, len(x.shape)), index.kept()
        at = dims[0] if dims else 0

        def place(where: Samples) -> Samples:
            if index.shape[where.dim] != shape[where.dim]:
                raise MixesSamples("its index leaves out samples")
            return along(where, dims, "it gathers")

        def pull(s: Tensor) -> Tensor:
            out = s.new_zeros(s.shape[0], *shape)
            return out.scatter_add_(1 + at, read.tensor.expand_as(s), s)

        own = call.place(x.samples, place)[0]
        by_index = call.place(index.samples, lambda where: where)[0]
        super().__init__(call, x, common([own, by_index]), pull)


@register_rule("aten::index")
class Index(Lookup):
    """out = x[i, j, ...] with tensors of indices, or masks that are the same for all samples."""

    def __init__(self, call: Call, x: Operand, indices: Sequence[Operand | None]) -> None:
        shape, indexed = x.shape, Indices(call, x, indices)

        def pull(s: Tensor) -> Tensor:
            out = s.new_zeros(s.shape[0], prod(shape))
            out.index_add_(1, indexed.flat(s.device), s.reshape(s.shape[0], -1))
            return out.reshape(-1, *shape)

        super().__init__(call, x, indexed.samples_read(call, x), pull)


@register_rule("aten::index_put", "aten::_unsafe_index_put")
class IndexPut(Movement):
    """x with entries at an index replaced, or added to. Operands: x, the indices, the values."""

    def __init__(
        self,
        call: Call,
        x: Operand,
        indices: Sequence[Operand | None],
        values: Operand,
        accumulate: bool = False,
    ) -> None:
        super().__init__(call, x)
        self.indices, self.accumulate = Indices(call, x, indices), accumulate
        self.part, self.size = values.shape, len(call.operands)
        where = self.indices.samples_written(call, x, values)
        self.samples = (where,)
        last = self.size - 1
        if where is not None and x.is_weight:
            self.uses[0] = own_copy(x.shape, where, self._old)
        if where is not None and values.is_weight:
            self.uses[last] = CopyUse(values.shape, where, self._new)

    def _old(self, s: Tensor) -> Tensor:
        if self.accumulate:
            return s
        flat = s.reshape(s.shape[0], -1).index_fill(1, self.indices.flat(s.device), 0)
        return flat.reshape(s.shape)

    def _new(self, s: Tensor) -> Tensor:
        flat = s.reshape(s.shape[0], -1).index_select(1, self.indices.flat(s.device))
        return sum_to_shape(flat.reshape(s.shape[0], *self.indices.shape), self.part)

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index == 0:
            return self._old(s)
        return self._new(s) if index == self.size - 1 else None


class Indices:
    """x[indices] as indices into the flattened x."""

    def __init__(self, call: Call, x: Operand, indices: Sequence[Operand | None]) -> None:
        masks = [
            i for i in indices if i is not None and i.tensor.dtype in (torch.bool, torch.uint8)
        ]
        if call.count > 1 and any(mask.samples is not None for mask in masks):
            raise MixesSamples("it reads by a mask that depends on the samples")
        self.kept = [None if i is None else i.kept() for i in indices]
        self.indices = indices
        self.x_shape = x.shape
        self.shape = tuple(self._map(x.tensor.device).shape)

    def _map(self, device: torch.device) -> Tensor:
        flat = torch.arange(prod(self.x_shape), device=device).reshape(self.x_shape)
        return self.at(flat)

    def at(self, tensor: Tensor) -> Tensor:
        """tensor[indices]."""
        return aten.index(tensor, [None if kept is None else kept.tensor for kept in self.kept])

    def flat(self, device: torch.device) -> Tensor:
        """The flat indices that are read, in order."""
        return self._map(device).reshape(-1)

    def samples_read(self, call: Call, x: Operand) -> Samples | None:
        """Samples in x[indices]: those of x, which an index may only read within a sample."""
        if call.count == 1 or all(operand.samples is None for operand in call.operands):
            return call.everywhere()[0]
        by_index = [self._index_labels(i) for i in self.indices if i is not None and i.samples]
        if x.samples is None:
            found = by_index.pop()
        else:
            found = self.at(labels(x.samples, x))
        for other in by_index:
            if not torch.equal(other.expand(self.shape), found.expand(self.shape)):
                raise MixesSamples("it reads entries of one sample at an index of another")
        return located(Samples(call.count), found.expand(self.shape))

    def samples_written(self, call: Call, x: Operand, values: Operand) -> Samples | None:
        """Samples in x after values were written at the indices."""
        if call.count == 1 or all(operand.samples is None for operand in call.operands):
            return call.everywhere()[0]
        rows = [self._index_labels(i) for i in self.indices if i is not None and i.samples]
        if values.samples is not None:
            rows.append(labels(values.samples, values))
        fits = [x.samples] if x.samples else candidates(call.count, x.shape)
        for where in fits:
            found = self.at(labels(where, x))
            if all(torch.equal(row.expand(self.shape), found) for row in rows):
                return where
        raise MixesSamples("it writes entries of one sample among those of another")

    def _index_labels(self, index: Operand) -> Tensor:
        """The sample of each entry that an index chooses, broadcast to the shape of x[indices]."""
        assert index.samples is not None
        used = [d for d, i in enumerate(self.indices) if i is not None]
        shapes = [i.shape for i in self.indices if i is not None]
        joint = torch.broadcast_shapes(*shapes)
        first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
        after = len(self.shape) - first - len(joint)
        own = labels(index.samples, index).expand(joint)
        return own.reshape(*(1,) * first, *joint, *(1,) * after)


@register_rule("aten::slice_scatter", "aten::select_scatter")
class PartReplaced(Movement):
    """x with a range or one entry of a dimension replaced."""

    def __init__(
        self, call: Call, x: Operand, part: Operand, dim: int = 0, *where: Any, **kwargs: Any
    ) -> None:
        super().__init__(call, x)
        self.dim = dim % len(x.shape)
        self.select = call.name == "aten::select_scatter"
        self.where, self.kwargs = where, kwargs

        def place(samples: Samples) -> Samples:
            if samples.dim == self.dim and part.shape != x.shape:
                raise MixesSamples(f"it writes a part of dimension {self.dim}, which holds samples")
            return samples

        def part_place(samples: Samples) -> Samples:
            return place(samples.at(samples.dim + (self.select and samples.dim >= self.dim)))

        own = call.place(x.samples, place)[0]
        placed = common([own, call.place(part.samples, part_place)[0]])
        self.samples = (placed,)
        for index, (operand, pull) in enumerate(((x, self._old), (part, self._new))):
            if placed is not None and operand.is_weight:
                own = placed.at(placed.dim - (index and self.select and placed.dim > self.dim))
                self.uses[index] = own_copy(operand.shape, own, pull)

    def _new(self, s: Tensor) -> Tensor:
        if self.select:
            return s.select(1 + self.dim, *self.where, **self.kwargs)
        return aten.slice(s, 1 + self.dim, *self.where, **self.kwargs)

    def _old(self, s: Tensor) -> Tensor:
        value = s.clone()
        self._new(value).zero_()
        return value

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        return self._new(s) if index else self._old(s)
