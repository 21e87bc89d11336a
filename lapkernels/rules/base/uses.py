"""How a parameter enters a call, and its share of the curvature.

A use computes the Jacobian of the weight from columns at the call's result, for each sample

    G_{n,v} = d (s_v . out_n) / d weight,    [V, N, *weight.shape],

and into sums over it. ``WeightUse`` covers every layer that is a correlation of its input with its
weight; its sums are kernels that never hold G in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from lapkernels import ops
from lapkernels.ops import Geometry, skips_zeros
from lapkernels.ops.base.chunks import jacobian_chunks, row_chunks, slices
from lapkernels.rules.base.samples import Samples, follow, per_sample, spread, units


class Use(ABC):
    """A weight of shape ``shape`` in one call of ``count`` samples."""

    shape: tuple[int, ...]
    samples: Samples

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.samples.count

    @property
    def channels(self) -> int | None:
        """The number of output channels C, if dimension 0 of the weight has one entry for each."""
        return None

    def channel_dots(self, s: Tensor, direction: Tensor | None = None) -> Tensor:
        """sum_i G_{n,v}[c, i] direction[c, i] of each channel, [V, N, C]; a sum if it is None."""
        raise NotImplementedError

    def weighted_sum(self, s: Tensor, c: Tensor) -> Tensor:
        """sum_{n,v} c[v, n] G_{n,v} with a number ``c`` [V, N, C] for each channel."""
        raise NotImplementedError

    @abstractmethod
    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        """G of the samples in ``rows``, [V, n, *shape], from columns ``s`` [V, *out]."""

    def add_jacobian(self, g: Tensor, s: Tensor, rows: slice) -> None:
        """Add G of the samples in ``rows`` to ``g`` [V, n, *shape]."""
        g += self.jacobian(s, rows)

    def jacobian_sum(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        """sum_n G_n of the samples in ``rows`` at one column [1, *out], of the weight's shape."""
        return self.jacobian(s, rows).sum((0, 1))

    @abstractmethod
    def squared(self, m: Tensor) -> Tensor:
        """sum_n sum_j J_n[j, p]² m_n[j] for each entry p of the weight, from ``m`` [*out].

        A new tensor, which the caller may overwrite.
        """

    def squared_sum(self, s: Tensor) -> Tensor:
        """sum_{n,v} G_{n,v}²."""
        total = s.new_zeros(self.shape)
        for columns, rows in self.chunks(s):
            total += self.jacobian(s[columns], rows).square().sum((0, 1))
        return total

    def squared_dot(self, s: Tensor, variance: Tensor) -> Tensor:
        """sum_p variance[p] G_{n,v}[p]², [N, V]."""
        total = s.new_empty(self.count, s.shape[0])
        for columns, rows in self.chunks(s):
            g = _flat(self.jacobian(s[columns], rows))
            total[rows, columns] = (g.square() @ variance.flatten()).T
        return total

    def gram(self, s: Tensor, variance: Tensor) -> Tensor:
        """sum_p G_{n,v}[p] variance[p] G_{n,v'}[p], [N, V, V]."""
        total = s.new_empty(self.count, s.shape[0], s.shape[0])
        for columns, rows in self.chunks(s):
            g = _flat(self.jacobian(s[columns], rows)).transpose(0, 1)
            scaled = g * variance.flatten()
            total[rows, columns, columns] = scaled @ g.mT
            for others in slices(columns.start, columns.stop - columns.start):
                h = _flat(self.jacobian(s[others], rows)).transpose(0, 1)
                total[rows, columns, others] = value = scaled @ h.mT
                total[rows, others, columns] = value.mT
        return total

    def chunks(self, s: Tensor) -> Iterator[tuple[slice, slice]]:
        """Slices of columns and samples whose G is in memory at a time."""
        return jacobian_chunks(s.shape[0], self.count, prod(self.shape))


@dataclass(frozen=True)
class WeightUse(Use):
    """A layer z = W * x described by a geometry; ``x()`` is [N, I, *in] or, for Linear, [N, T, I].

    ``arrange`` views columns at the call's result as [V, N, O, *out] ([V, N, T, O] for Linear).
    ``flipped`` says that the weight is stored as [I, O], Linear only.
    """

    shape: tuple[int, ...]
    geometry: Geometry
    x: Callable[[], Tensor]
    arrange: Callable[[Tensor], Tensor]
    flipped: bool = False

    @property
    def count(self) -> int:
        return self.x().shape[0]

    @property
    def positions(self) -> int:
        """T, the number of positions of a sample at which the weight is applied."""
        x = self.x()
        if self.geometry.is_linear:
            return x.shape[1:-1].numel()
        return prod(self.geometry.output_size(tuple(x.shape[2:])))

    def stored(self, value: Tensor, leading: int = 0) -> Tensor:
        """A tensor [L.., O, I, *k] in the weight's own layout."""
        value = value.mT if self.flipped else value
        return value.reshape(*value.shape[:leading], *self.shape)

    def canonical(self, value: Tensor) -> Tensor:
        """A tensor of the weight's own layout as [O, I, *k]."""
        if self.geometry.is_linear:
            value = value.reshape(self.shape[-2:])
            return value.mT if self.flipped else value
        return value.reshape(*self.shape[:2], *self.geometry.kernel_size)

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        value = ops.jacobian(self.arrange(s)[:, rows], self.x()[rows], self.geometry)
        return self.stored(value, 2)

    def jacobian_sum(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        entry, x = self.arrange(s)[0, rows], self.x()[rows]
        return self.stored(ops.conv_weight(entry, x, self.geometry))

    def add_jacobian(self, g: Tensor, s: Tensor, rows: slice) -> None:
        if not self.geometry.is_linear:
            super().add_jacobian(g, s, rows)
            return
        # A matrix may be large: the product is added in place, without a second G.
        entry, x = self.arrange(s)[:, rows].flatten(2, -2), self.x()[rows].flatten(1, -2)
        for known, one in zip(g, entry, strict=True):
            left, right = (x, one) if self.flipped else (one, x)
            known.view(-1, left.shape[2], right.shape[2]).baddbmm_(left.mT, right)

    @property
    def channels(self) -> int | None:
        geometry = self.geometry
        if self.flipped or geometry.transposed or geometry.padding_mode != "zeros":
            return None
        even = all(before == after for before, after in geometry.padding)
        return self.shape[0] if even and (len(self.shape) == 2 or not geometry.is_linear) else None

    def channel_dots(self, s: Tensor, direction: Tensor | None = None) -> Tensor:
        # <G, d> = <s, d * x>: the layer with another weight.
        x, geometry, entry = self.x(), self.geometry, self.arrange(s)
        if geometry.is_linear:
            z = x.sum(-1, keepdim=True) if direction is None else x @ direction.mT
            return (entry * z).flatten(2, -2).sum(2)
        weight = direction
        if weight is None:
            weight = x.new_ones(1, *self.shape[1:]).expand(geometry.groups, *self.shape[1:])
        taps = (geometry.stride, [before for before, _ in geometry.padding], geometry.dilation)
        weight = weight.reshape(*weight.shape[:2], *geometry.kernel_size)
        no = [0] * len(geometry.kernel_size)
        z = torch.convolution(x, weight, None, *taps, False, no, geometry.groups)
        z = z.flatten(2).repeat_interleave(entry.shape[2] // z.shape[1], 1)
        return torch.einsum("vncp,ncp->vnc", entry.flatten(3), z)

    def weighted_sum(self, s: Tensor, c: Tensor) -> Tensor:
        entry, last = self.arrange(s), self.geometry.is_linear
        c = c[:, :, None] if last else c.reshape(*c.shape, *(1,) * (entry.dim() - 3))
        return self.stored(ops.conv_weight((entry * c).sum(0), self.x(), self.geometry))

    def squared(self, m: Tensor) -> Tensor:
        entry = self.arrange(m.unsqueeze(0))[0]
        if self.geometry.is_linear:
            square = self.x().flatten(0, -2).square()
            return self.stored(entry.flatten(0, -2).mT @ square)
        return self.stored(ops.squared_conv_weight(entry, self.x(), self.geometry))

    def squared_sum(self, s: Tensor) -> Tensor:
        entry = self.arrange(s)
        if self.geometry.is_linear and self.positions == 1:
            # G is an outer product: sum_v G² needs only the second moment of the columns.
            same = entry.stride(1) == 0
            m = (entry[:, :1] if same else entry).square().sum(0).expand(entry.shape[1:])
            return self.stored(m[:, 0].mT @ self.x()[:, 0].square())
        sparse = skips_zeros(entry, self.geometry)
        squared_sum = ops.sparse_squared_sum if sparse else ops.jacobian_squared_sum
        return self.stored(squared_sum(entry, self.x(), self.geometry))

    def squared_dot(self, s: Tensor, variance: Tensor) -> Tensor:
        entry = self.canonical(variance)
        return ops.jacobian_squared_dot(self.arrange(s), self.x(), entry, self.geometry)

    def gram(self, s: Tensor, variance: Tensor) -> Tensor:
        entry = self.canonical(variance)
        return ops.jacobian_gram(self.arrange(s), self.x(), entry, self.geometry)


@dataclass(frozen=True)
class RowsUse(WeightUse):
    """A matrix [O, I] times one row for each sample: G = s xᵀ with columns s [V, N, O].

    ``rows()`` is x [N, I]. Diagonals and columns that are the same for all samples are used once.
    """

    rows: Callable[[], Tensor] = field(kw_only=True)

    @classmethod
    def of(cls, shape: tuple[int, ...], rows: Callable[[], Tensor]) -> RowsUse:
        """The use of a matrix of this shape."""
        return cls(
            shape, Geometry(), lambda: rows().unsqueeze(1), lambda s: s.unsqueeze(2), rows=rows
        )

    def squared(self, m: Tensor) -> Tensor:
        square = self.rows().square()
        if is_constant(m):
            return torch.outer(m[0], square.sum(0))
        return m.mT @ square

    def squared_sum(self, s: Tensor) -> Tensor:
        if is_constant(s[0]):
            return self.squared(s[:, 0].square().sum(0).expand(s.shape[1:]))
        return self.squared(s[0].square() if len(s) == 1 else s.square().sum(0))

    def squared_dot(self, s: Tensor, variance: Tensor) -> Tensor:
        spread = self.rows().square() @ variance.mT  # [N, O]
        return torch.linalg.vecdot(s, s * spread).T


def is_constant(m: Tensor) -> bool:
    """Whether a diagonal [N, *out] is the same for all of several samples."""
    return m.stride(0) == 0 and len(m) > 1


@dataclass(frozen=True)
class ScaleUse(Use):
    """out = factor * weight + ..., broadcast; no factor is a weight that is only added.

    ``along`` is the shape in which the weight is broadcast, where that is not its own.
    """

    shape: tuple[int, ...]
    samples: Samples
    factor: Callable[[], Tensor] | None = None
    along: tuple[int, ...] | None = None

    def has_samples(self, rank: int) -> bool:
        """Whether the weight has an entry for each sample of a result with ``rank`` dimensions."""
        along = self.along or self.shape
        dim = self.samples.dim - (rank - len(along))
        return self.count > 1 and dim >= 0 and along[dim] > 1

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        value = s if self.factor is None else s * self.factor()
        sums = per_sample(value, self.samples, self.along or self.shape, rows)
        return sums.reshape(*sums.shape[:2], *self.shape)

    def squared_sum(self, s: Tensor) -> Tensor:
        if self.factor is None and s.dim() > 1 and self.samples.split(s, 1).stride(1) == 0:
            # Columns that are the same for all samples.
            return self.count * self.jacobian(s, slice(0, 1)).square().sum((0, 1))
        return self.jacobian(s).square().sum((0, 1))

    def squared(self, m: Tensor) -> Tensor:
        value = m if self.factor is None else m * self.factor().square()
        along = self.along or self.shape
        sums = value.sum_to_size(*(1,) * (value.dim() - len(along)), *along).reshape(self.shape)
        return sums.clone() if sums.data_ptr() == m.data_ptr() else sums


@dataclass(frozen=True)
class ProductUse(Use):
    """Several weights, each in a product of its own: out[b, t] = x[b, t] weight[b].

    ``x()`` is [N, B, T, I] and ``arrange`` views columns as [V, N, B, T, O]. The weight is
    [B, I, O], [B, O, I] if ``flipped``, or without those of its dimensions that have one entry.
    """

    shape: tuple[int, ...]
    x: Callable[[], Tensor]
    arrange: Callable[[Tensor], Tensor]
    flipped: bool = False

    @property
    def count(self) -> int:
        return self.x().shape[0]

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        g = self.x()[rows].mT @ self.arrange(s)[:, rows]
        return (g.mT if self.flipped else g).reshape(*g.shape[:2], *self.shape)

    def squared(self, m: Tensor) -> Tensor:
        value = (self.x().square().mT @ self.arrange(m.unsqueeze(0))[0]).sum(0)
        return (value.mT if self.flipped else value).reshape(self.shape)


@dataclass(frozen=True)
class OwnEntriesUse(Use):
    """A weight with entries of its own for each sample, such as one that was repeated for them.

    ``samples`` are those of the weight. From columns ``gradient`` gives d (s_v . out) / d weight,
    [V, *shape], and from a diagonal ``squares`` gives sum_j J[j, p]² m[j]; entries of one sample
    depend on that sample only.
    """

    shape: tuple[int, ...]
    samples: Samples
    gradient: Callable[[Tensor], Tensor]
    squares: Callable[[Tensor], Tensor]

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        return spread(self.gradient(s), self.samples, rows)

    def squared(self, m: Tensor) -> Tensor:
        return self.squares(m).clone()

    def squared_sum(self, s: Tensor) -> Tensor:
        return self.gradient(s).square().sum(0)

    def squared_dot(self, s: Tensor, variance: Tensor) -> Tensor:
        return _flat(self.samples.split(self.gradient(s).square() * variance, 1)).sum(2).T

    def gram(self, s: Tensor, variance: Tensor) -> Tensor:
        g = _flat(self.samples.split(self.gradient(s), 1)).transpose(0, 1)
        scale = self.samples.split(variance).flatten(1).unsqueeze(1)
        return (g * scale) @ g.mT


def own_copy(
    shape: tuple[int, ...], samples: Samples, pull: Callable[[Tensor], Tensor]
) -> OwnEntriesUse:
    """Use of a weight whose entries are copied, each within the sample it belongs to."""
    own = follow(1, shape) if samples.count == 1 else samples
    return OwnEntriesUse(shape, own, pull, lambda m: pull(m.unsqueeze(0))[0])


@dataclass(frozen=True)
class EmbeddingUse(Use):
    """out = weight[index]. Rows that a sample does not read have no column and cost nothing."""

    shape: tuple[int, ...]
    samples: Samples
    index: Callable[[], Tensor]
    padding_idx: int = -1

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        index, entry = self._tokens(s)
        index, entry = index[rows], entry[:, rows]
        g = entry.new_zeros(entry.shape[0], entry.shape[1], *self.shape)
        for n, tokens in enumerate(index):
            g[:, n].index_add_(1, tokens, entry[:, n])
        return g

    def jacobian_sum(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        index, entry = self._tokens(s)
        index, entry = index[rows].flatten(), entry[0, rows].flatten(0, 1)
        return s.new_zeros(self.shape).index_add_(0, index, entry)

    def squared(self, m: Tensor) -> Tensor:
        index, entry = self._tokens(m.unsqueeze(0))
        return m.new_zeros(self.shape).index_add_(0, index.flatten(), entry[0].flatten(0, 1))

    def squared_sum(self, s: Tensor) -> Tensor:
        rows, _, sums = self._sums(s)
        return s.new_zeros(self.shape).index_add_(0, rows, sums.square().sum(0))

    def squared_dot(self, s: Tensor, variance: Tensor) -> Tensor:
        rows, samples, sums = self._sums(s)
        value = (sums.square() * variance[rows]).sum(2)
        return s.new_zeros(self.count, s.shape[0]).index_add_(0, samples, value.T)

    def gram(self, s: Tensor, variance: Tensor) -> Tensor:
        rows, samples, sums = self._sums(s)
        total = s.new_zeros(self.count, s.shape[0], s.shape[0])
        for n in range(self.count):
            own = samples == n
            g = sums[:, own].flatten(1)
            total[n] = (g * variance[rows[own]].flatten()) @ g.T
        return total

    def _tokens(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Index [N, T] and columns [V, N, T, D], those of the padding index set to zero."""
        index = self.samples.split(self.index()).flatten(1)
        entry = self.samples.split(s, 1).flatten(2, -2)
        if self.padding_idx >= 0:
            entry = entry * (index != self.padding_idx).to(entry.dtype).unsqueeze(-1)
        return index, entry

    def _sums(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weight row [U], sample [U] and summed columns [V, U, D] of each row a sample reads.

        U counts all tokens, so that no device has to be waited for; rows left over are zero.
        """
        index, entry = self._tokens(s)
        keys = index + self.shape[0] * torch.arange(len(index), device=index.device).unsqueeze(1)
        ordered, order = keys.flatten().sort()
        differs = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=differs[1:])
        place = differs.cumsum(0) - 1
        row = torch.zeros_like(ordered).scatter_(0, place, ordered)
        entry = entry.flatten(1, 2)
        sums = torch.zeros_like(entry).index_add_(
            1, torch.empty_like(place).scatter_(0, order, place), entry
        )
        return row % self.shape[0], row // self.shape[0], sums


@dataclass(frozen=True)
class GenericUse(Use):
    """A weight in an op without a rule: one call of autograd for each sample and column. Slow.

    ``samples`` are those of the result; ``pull(s)`` is d (s_v . out) / d weight, [V, *shape],
    summed over samples.
    """

    shape: tuple[int, ...]
    samples: Samples
    pull: Callable[[Tensor], Tensor]

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        first, last, _ = rows.indices(self.count)
        found = []
        for part in row_chunks(last - first, s.numel()):
            alone = spread(s, self.samples, slice(first + part.start, first + part.stop))
            found.append(self.pull(alone.flatten(0, 1)).unflatten(0, alone.shape[:2]))
        return torch.cat(found, 1)

    def squared(self, m: Tensor) -> Tensor:
        total = m.new_zeros(self.shape)
        for unit, entry in units(m, self.samples):
            g = self.jacobian(unit.unsqueeze(0))[0]
            total += torch.tensordot(entry, g.square(), 1)
        return total


@dataclass(frozen=True)
class CopyUse(GenericUse):
    """A weight whose entries are copied to indices that may depend on the sample: J is 0 or 1."""

    def squared(self, m: Tensor) -> Tensor:
        return self.pull(m.unsqueeze(0))[0].clone()


def _flat(g: Tensor) -> Tensor:
    """[V, N, P] of [V, N, *parameter]; a parameter may be a single number."""
    return g.flatten(2) if g.dim() > 2 else g.unsqueeze(2)
