"""Ops by autograd: the local derivative of any differentiable op.

This serves an op without a rule of its own. Columns go back one at a time, unless the op is in
``VECTORISED``: torch's vmap gives wrong gradients for some ops, so each of these is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Kept, Operand, Rule, Unsupported
from lapkernels.rules.base.samples import MixesSamples, Samples, follow, units
from lapkernels.rules.base.uses import GenericUse

VECTORISED = frozenset(
    f"aten::{name}"
    for name in (
        *("_linalg_solve_ex", "linalg_inv_ex", "_trilinear"),
        *("cumprod", "logcumsumexp", "grid_sampler_2d", "affine_grid_generator"),
    )
)


# Entries of a weight up to which its Jacobian is made for the approximate diagonal.
LARGEST = 1 << 12


class LocalGradient(Rule):
    """Columns through an op by autograd on the op alone.

    Callers that know the op give ``samples``; otherwise the op is tried on one sample alone.
    The diagonal is exact and slow: as many columns as a sample has results.
    """

    def __init__(
        self,
        call: Call,
        *args: Any,
        samples: Sequence[Samples | None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.op = call.op
        self.kept: list[Kept] = [operand.kept() for operand in call.operands]
        self.placed = [operand.samples for operand in call.operands]
        self.same = call.same
        self.fill = filler(args, kwargs)
        self.outputs = [i for i, out in enumerate(call.outputs) if out.is_floating_point()]
        self.differentiable = any(o.is_floating_point() or o.is_complex() for o in call.outputs)
        self.vectorised = call.name in VECTORISED
        self.samples = self._probe(call) if samples is None else tuple(samples)
        where = self.samples[0] if self.samples else None
        if where is not None:
            for index, operand in enumerate(call.operands):
                if operand.is_weight:
                    self.uses[index] = self._use(index, operand, where)

    def columns(self, s: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        chosen = [i for i in range(len(self.kept)) if wanted[i]]
        outputs = [i for i in self.outputs if s[i] is not None]
        result: list[Tensor | None] = [None] * len(self.kept)
        if not chosen or not outputs:
            return result
        cotangents = [one for i in outputs if (one := s[i]) is not None]
        for index, value in zip(chosen, self._pull(chosen, outputs, cotangents), strict=True):
            result[index] = value
        return result

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        result: list[Tensor | None] = [None] * len(self.kept)
        chosen = [group for group in self.same if any(wanted[i] for i in group)]
        for output in self.outputs:
            one, where = m[output], self.samples[output]
            if one is None:
                continue
            if where is None:
                if one.numel() > LARGEST:
                    raise Unsupported(
                        f"makes a weight of {one.numel()} numbers and has no rule for the "
                        "approximate diagonal; methods 'exact', 'mc' and 'empirical' and "
                        "predictive_variance work"
                    )
                where = follow(1, one.shape)
            for unit, entry in units(one, where):
                s: list[Tensor | None] = [None] * len(m)
                s[output] = unit.unsqueeze(0)
                parts = self.columns(s, wanted)
                for group in chosen:
                    found = [part for i in group if (part := parts[i]) is not None]
                    square = torch.cat(found).sum(0).square()
                    value = self._weighted(group[0], square, entry)
                    known = result[group[0]]
                    result[group[0]] = value if known is None else known + value
        return result

    def _weighted(self, index: int, square: Tensor, entry: Tensor) -> Tensor:
        """Entries of sample n times entry[n]."""
        where = self.placed[index] or follow(1, square.shape)
        parts = where.split(square)
        value = parts * entry.reshape(-1, *(1 for _ in parts.shape[1:]))
        return where.join(value).reshape(square.shape)

    def _pull(
        self, chosen: Sequence[int], outputs: Sequence[int], s: Sequence[Tensor]
    ) -> list[Tensor]:
        """Columns [V, *in] of the operands ``chosen``, from columns of the results ``outputs``."""
        with torch.enable_grad():
            tensors = [kept.tensor for kept in self.kept]
            leaves = [tensors[i].detach().requires_grad_() for i in chosen]
            for index, leaf in zip(chosen, leaves, strict=True):
                tensors[index] = leaf
            args, kwargs = self.fill(tensors)
            results = as_tuple(self.op(*args, **kwargs))
            found = [results[i] for i in outputs]

        def back(cotangents: Sequence[Tensor], batched: bool) -> Sequence[Tensor]:
            return torch.autograd.grad(
                found,
                leaves,
                cotangents,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
                materialize_grads=True,
            )

        if self.vectorised:
            return list(back(s, True))
        parts = [back(one, False) for one in zip(*s, strict=True)]
        return [torch.stack(column) for column in zip(*parts, strict=True)]

    def _probe(self, call: Call) -> tuple[Samples | None, ...]:
        """Samples in the results, found by running the op on the last sample alone."""
        placed = [samples for samples in self.placed if samples is not None]
        if not placed:
            return tuple(None for _ in call.outputs)
        count = placed[0].count
        if count == 1:
            return tuple(follow(1, out.shape) for out in call.outputs)
        if any(samples.outer * samples.inner > 1 for samples in placed):
            raise MixesSamples("it has no rule, and its samples share a dimension with others")
        n = count - 1
        entries = [_only(k.tensor, o, n) for k, o in zip(self.kept, call.operands, strict=True)]
        try:
            args, kwargs = self.fill(entries)
            alone = as_tuple(self.op(*args, **kwargs))
        except (RuntimeError, IndexError) as error:
            raise MixesSamples(f"it has no rule and does not take one sample: {error}") from error
        return tuple(
            _compare(whole, one, count, n) for whole, one in zip(call.outputs, alone, strict=True)
        )

    def _use(self, index: int, operand: Operand, where: Samples) -> GenericUse:
        return GenericUse(
            operand.shape, where, lambda s: self._pull([index], self.outputs[:1], [s])[0]
        )


def as_tuple(value: Any) -> tuple[Tensor, ...]:
    """The tensors an op returned."""
    entries = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(entry for entry in entries if isinstance(entry, Tensor))


def _only(tensor: Tensor, operand: Operand, n: int) -> Tensor:
    """The part of an operand that belongs to sample n."""
    samples = operand.samples
    return tensor if samples is None or samples.count == 1 else tensor.narrow(samples.dim, n, 1)


def _compare(whole: Tensor, one: Tensor, count: int, n: int) -> Samples | None:
    if whole.shape == one.shape:
        raise MixesSamples("it has no rule, and its result has no dimension for samples")
    dims = [d for d in range(whole.dim()) if whole.shape[d] != one.shape[d]]
    if whole.dim() != one.dim() or len(dims) != 1 or whole.shape[dims[0]] != count:
        raise MixesSamples("it has no rule, and where its result holds samples cannot be told")
    (dim,) = dims
    if not torch.allclose(whole.narrow(dim, n, 1), one, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise MixesSamples("its result for a sample changes with the other samples")
    return Samples(count, dim)


def _marked(value: Any) -> Any:
    """An argument with operands replaced by their class, so that it holds no tensor."""
    if isinstance(value, Operand):
        return Operand
    if isinstance(value, (list, tuple)):
        return type(value)(_marked(entry) for entry in value)
    return value


def filler(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Sequence[Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Replace the operands among the arguments by tensors."""
    marked, named = _marked(args), {name: _marked(value) for name, value in kwargs.items()}

    def fill(tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rest = iter(tensors)

        def put(value: Any) -> Any:
            if value is Operand:
                return next(rest)
            if isinstance(value, (list, tuple)):
                return type(value)(put(entry) for entry in value)
            return value

        return put(marked), {name: put(value) for name, value in named.items()}

    return fill
