"""Reductions over dimensions: every entry enters one group, and each group gives one result.

With w the derivative of a group's result with respect to its entries, of the operand's shape,

    s_in = w s,      m_in = w² m,      both repeated over the dimensions that were reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops.base.precision import wide
from lapkernels.rules.base.local_gradient import as_tuple, filler
from lapkernels.rules.base.rule import Call, Operand, Rule, register_rule
from lapkernels.rules.base.samples import Samples, along
from lapkernels.rules.elementwise import Elementwise
from lapkernels.rules.shape import Movement, behind

_BY_AUTOGRAD = (
    *("amax", "amin", "logsumexp", "var", "std", "var_mean", "std_mean", "linalg_vector_norm"),
    *("norm", "prod", "median", "nanmedian", "mode", "kthvalue", "aminmax", "nansum"),
)
_CONSTANT = ("all", "any", "argmax", "argmin", "count_nonzero")


class Reduction(Rule):
    """Samples of the result, and its expansion over the reduced dimensions."""

    repeatable = True

    def __init__(self, call: Call, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        given = call.arguments(args, kwargs)
        x: Operand = args[0]
        self.shape = x.shape
        self.dims = dimensions(given.get("dim"), len(x.shape))
        keepdim = bool(given.get("keepdim", False))
        if pools(x.samples, self.dims) and not x.reached:
            self.samples = tuple(None for _ in call.outputs)
        else:
            self.samples = call.place(x.samples, lambda where: where.without(self.dims, keepdim))
        self.kept_sizes = [1 if d in self.dims else size for d, size in enumerate(x.shape)]
        self.count = prod(x.shape[d] for d in self.dims)

    def repeated(self, s: Tensor) -> Tensor:
        """[V, *out] with the reduced dimensions kept, of size one."""
        return s.reshape(s.shape[0], *self.kept_sizes)


@register_rule("aten::sum", "aten::mean")
class Sum(Reduction):
    """Sum or mean: w is a number."""

    reads_input = False

    def __init__(self, call: Call, *args: Any, **kwargs: Any) -> None:
        super().__init__(call, *args, **kwargs)
        self.weight = 1 / self.count if call.name == "aten::mean" else 1
        self.dtype = wide(call.operands[0].tensor.dtype)

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        return self._pull(s, self.weight)

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor:
        return self._pull(m.unsqueeze(0), self.weight**2)[0]

    def _pull(self, s: Tensor, weight: float) -> Tensor:
        value = self.repeated(s if weight == 1 else s * weight).to(self.dtype)
        return value.expand(s.shape[0], *self.shape)


@register_rule(*(f"aten::{name}" for name in _BY_AUTOGRAD))
class Weighted(Reduction):
    """Any other reduction, w by autograd. Some have several results, each with its own w."""

    def __init__(self, call: Call, *args: Any, **kwargs: Any) -> None:
        super().__init__(call, *args, **kwargs)
        self.op = call.op
        self.x = args[0].kept()
        self.fill = filler(args, kwargs)

    def columns(self, s: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        return [self._pulled(s, 1)]

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        return [self._pulled([None if one is None else one.unsqueeze(0) for one in m], 2)[0]]

    def _pulled(self, s: Sequence[Tensor | None], power: int) -> Tensor:
        given = [(index, one) for index, one in enumerate(s) if one is not None]
        parts = [self.repeated(one) * self._weight(index) ** power for index, one in given]
        return sum(parts[1:], parts[0])

    def _weight(self, index: int) -> Tensor:
        with torch.enable_grad():
            x = self.x.tensor.detach().requires_grad_()
            args, kwargs = self.fill([x])
            out = as_tuple(self.op(*args, **kwargs))[index]
            return torch.autograd.grad(out, x, torch.ones_like(out))[0]


@register_rule("aten::max", "aten::min")
def extreme(call: Call, *args: Any, **kwargs: Any) -> Rule:
    """Largest or smallest entry of a dimension or of all, or of two tensors entry by entry."""
    return (Elementwise if len(call.operands) == 2 else Weighted)(call, *args, **kwargs)


@register_rule(*(f"aten::{name}" for name in _CONSTANT))
class Verdict(Reduction):
    """Reductions to truth values, counts and indices: no derivative."""

    differentiable = False
    reads_input = False


@register_rule("aten::cumsum")
class CumulativeSum(Movement):
    """out_o = sum_{i <= o} x_i: every entry of the Jacobian is 0 or 1."""

    def __init__(self, call: Call, x: Operand, dim: int, **kwargs: Any) -> None:
        own, dtype = dimensions(dim, len(x.shape)), wide(x.tensor.dtype)
        dims = behind(own)

        def pull(s: Tensor) -> Tensor:
            return s.flip(dims).cumsum(dims[0]).flip(dims).to(dtype) if dims else s

        super().__init__(call, x, lambda where: along(where, own, "its sum"), pull)


@register_rule("aten::sort", "aten::topk", "aten::cummax", "aten::cummin")
class Selected(Movement):
    """Entries of a dimension selected by value; the second result has their indices."""

    def __init__(self, call: Call, x: Operand, *args: Any, **kwargs: Any) -> None:
        given = call.arguments((x, *args), kwargs)
        self.dims = dimensions(given["dim"], len(x.shape))
        super().__init__(call, x, lambda where: along(where, self.dims, "its order"))
        self.index = call.keep(call.outputs[1])

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        if not self.dims:
            return s
        out = s.new_zeros(s.shape[0], *self.shape)
        return out.scatter_add_(1 + self.dims[0], self.index.tensor.expand_as(s), s)


def pools(samples: Samples | None, dims: Sequence[int]) -> bool:
    """Whether a reduction runs over the samples of a batch, so that its result is one for all."""
    return samples is not None and samples.count > 1 and samples.dim in dims


def dimensions(dim: Any, rank: int) -> tuple[int, ...]:
    """The dimensions that an op's argument names; None and the empty list mean all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    chosen = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(d % rank for d in chosen) if rank else ()
