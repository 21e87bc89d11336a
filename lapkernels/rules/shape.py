"""Ops that move entries without changing them: every entry of the Jacobian is 0 or 1.

A diagonal then passes as a column does, since J[o, i]² = J[o, i].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops.base.precision import wide
from lapkernels.rules.base.derived import moved
from lapkernels.rules.base.rule import Call, Operand, Rule, register_rule
from lapkernels.rules.base.samples import MixesSamples, Samples, common
from lapkernels.rules.base.uses import Use, own_copy
from lapkernels.rules.elementwise import sum_to_shape


class Movement(Rule):
    """A rule that passes diagonals as it passes columns.

    ``place`` gives the samples of the results from those of ``x``. ``pull`` gives columns [V, *in]
    from columns [V, *out], and ``push`` is the op itself on a tensor [*in], if it is one to one.
    Neither refers to ``x`` or to the call.
    """

    repeatable = True
    reads_input = False

    def __init__(
        self,
        call: Call,
        x: Operand,
        place: Callable[[Samples], Samples] | None = None,
        pull: Callable[[Tensor], Tensor] | None = None,
        push: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.shape = x.shape
        if place is not None:
            self.samples = call.place(x.samples, place)
        self.pulled, self.pushed = pull, push

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        assert self.pulled is not None
        return self.pulled(s) if index == 0 else None

    def push(self, tensor: Tensor) -> Tensor:
        """The op on a tensor [*in], if it is one to one."""
        assert self.pushed is not None
        return self.pushed(tensor)

    @property
    def one_to_one(self) -> bool:
        """Whether the op is one to one, so that there is a ``push``."""
        return self.pushed is not None

    def uses_behind(self, use: Use) -> dict[int, Use] | None:
        if self.pulled is None or self.pushed is None:
            return None
        transposed = isinstance(self, Permute) and list(self.order) == [1, 0]
        return {0: moved(use, self.shape, self.pulled, self.pushed, transposed=transposed)}

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        columns = [None if one is None else one.unsqueeze(0) for one in m]
        return [None if one is None else one[0] for one in self.columns(columns, wanted)]


def behind(dims: Iterable[int]) -> list[int]:
    """Dimensions of a tensor, as those of its columns."""
    return [1 + d for d in dims]


@register_rule(
    *("aten::view", "aten::_unsafe_view", "aten::reshape", "aten::_reshape_alias"),
    *("aten::unsqueeze", "aten::squeeze", "aten::alias", "aten::lift_fresh"),
)
class Reshape(Movement):
    """The same entries in the same order."""

    def __init__(self, call: Call, x: Operand, *args: Any, **kwargs: Any) -> None:
        old, new = x.shape, tuple(call.out.shape)
        self.same = old == new
        super().__init__(
            *(call, x, lambda where: where.reshaped(old, new)),
            *(lambda s: s.reshape(s.shape[0], *old), lambda tensor: tensor.reshape(new)),
        )


@register_rule("aten::clone", "aten::_to_copy", "aten::contiguous")
class Copy(Movement):
    """The same tensor on another device, in another memory format or dtype."""

    def __init__(self, call: Call, x: Operand, **kwargs: Any) -> None:
        dtype = wide(x.tensor.dtype)
        self.same = wide(call.out.dtype) == dtype
        pushed = (lambda tensor: tensor) if self.same else None
        super().__init__(call, x, lambda where: where, lambda s: s.to(dtype), pushed)


@register_rule("aten::permute", "aten::transpose", "aten::t")
class Permute(Movement):
    """Dimensions in another order."""

    def __init__(self, call: Call, x: Operand, *dims: Any) -> None:
        rank = len(x.shape)
        order = list(range(rank))
        if call.name == "aten::permute":
            order = [d % rank for d in dims[0]]
        elif rank > 1:
            a, b = dims if dims else (0, 1)
            order[a], order[b] = order[b], order[a]
        self.order = order
        back = [0, *behind(order.index(d) for d in range(rank))]
        super().__init__(
            *(call, x, lambda where: where.permuted(order)),
            *(lambda s: s.permute(back), lambda tensor: tensor.permute(order)),
        )


@register_rule("aten::expand")
class Expand(Movement):
    """Entries repeated along new or single dimensions."""

    def __init__(self, call: Call, x: Operand, size: list[int], **kwargs: Any) -> None:
        old, new = x.shape, len(call.out.shape) - len(x.shape)
        super().__init__(
            call, x, lambda where: where.at(where.dim + new), lambda s: sum_to_shape(s, old)
        )


@register_rule("aten::slice", "aten::select")
class Part(Movement):
    """A range or one entry of a dimension."""

    def __init__(self, call: Call, x: Operand, dim: int = 0, *where: Any) -> None:
        self.dim = dim % len(x.shape)
        self.select = call.name == "aten::select"
        self.where = where
        # Of a slice: its first entry, one behind its last, and the step.
        ends = slice(*[*where, None, None, None][:3])
        self.range = (0, 1, 1) if self.select else ends.indices(x.shape[self.dim])
        whole = call.out.shape == x.tensor.shape

        def place(samples: Samples) -> Samples:
            if samples.dim == self.dim and not whole:
                given = [*where, None, None, None][:3]
                first, step = given[0] or 0, given[2] or 1
                if self.select or step != 1:
                    raise MixesSamples(f"it takes a part of dimension {dim}, which holds samples")
                return samples.block(first % x.shape[self.dim], call.out.shape[self.dim])
            return samples.without([self.dim], keepdim=False) if self.select else samples

        super().__init__(call, x, place)

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        out = s.new_zeros(s.shape[0], *self.shape)
        if self.select:
            out.select(1 + self.dim, self.where[0]).copy_(s)
        else:
            torch.ops.aten.slice(out, 1 + self.dim, *self.where).copy_(s)
        return out


@register_rule(
    *("aten::split", "aten::split_with_sizes", "aten::unbind"),
    *("aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::chunk", "aten::unsafe_chunk"),
)
class Split(Movement):
    """All parts of a dimension."""

    def __init__(self, call: Call, x: Operand, *args: Any, dim: int = 0) -> None:
        super().__init__(call, x)
        self.unbind = call.name == "aten::unbind"
        given = args[0 if self.unbind else 1 :]
        self.dim = (given[0] if given else dim) % len(x.shape)
        self.sizes = [1 if self.unbind else out.shape[self.dim] for out in call.outputs]

        def place(samples: Samples, part: int) -> Samples:
            if samples.dim != self.dim:
                return samples.without([self.dim], keepdim=False) if self.unbind else samples
            if self.unbind:
                raise MixesSamples(f"it splits dimension {self.dim}, which holds samples")
            return samples.block(sum(self.sizes[:part]), self.sizes[part])

        self.samples = tuple(
            call.place(x.samples, partial(place, part=part))[part]
            for part in range(len(self.sizes))
        )

    def columns(self, s: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        some = next(one for one in s if one is not None)
        out = some.new_zeros(some.shape[0], *self.shape)
        first = 0
        for one, size in zip(s, self.sizes, strict=True):
            if one is not None:
                part = out.narrow(1 + self.dim, first, size)
                part.copy_(one.unsqueeze(1 + self.dim) if self.unbind else one)
            first += size
        return [out]


@register_rule("aten::cat", "aten::stack")
class Concatenate(Movement):
    """cat and stack."""

    def __init__(self, call: Call, parts: list[Operand], dim: int = 0) -> None:
        super().__init__(call, parts[0])
        rank = call.out.dim()
        self.dim = dim % rank
        self.stack = call.name == "aten::stack"
        self.shapes = [part.shape for part in parts]
        # torch.cat leaves out tensors of shape [0], whatever the rank of the others.
        self.sizes = [
            1 if self.stack else 0 if part.shape == (0,) else part.shape[self.dim] for part in parts
        ]

        def place(samples: Samples) -> Samples:
            if self.stack:
                return samples.at(samples.dim + (samples.dim >= self.dim))
            if samples.dim == self.dim:
                return samples.joined([part.samples for part in parts if part.shape != (0,)])
            return samples

        where = common(call.move(part.samples, place) for part in parts)
        self.samples = (where,)
        for index, part in enumerate(parts):
            if where is not None and part.is_weight:
                own = where.at(where.dim - (self.stack and where.dim > self.dim))
                self.uses[index] = own_copy(part.shape, own, partial(self.pull, index=index))

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        part = s.narrow(1 + self.dim, sum(self.sizes[:index]), self.sizes[index])
        return part.reshape(s.shape[0], *self.shapes[index])
