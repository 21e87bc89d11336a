"""Where the samples of a batch lie inside a tensor, and how ops move them.

Reshapes merge the sample dimension with others: attention works on [T * N, E], a video network on
[N * frames, C, H, W]. A quantity per sample is right only if it is known which entry belongs to
which sample, so this is tracked exactly from op to op, and an op that mixes samples is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


class MixesSamples(ValueError):
    """An op whose result for one sample depends on another, or whose samples cannot be tracked."""


class RandomResult(ValueError):
    """An op whose result is random, so that there is no one function to differentiate."""


@dataclass(frozen=True)
class Samples:
    """Dimension ``dim`` has ``outer * count * inner`` entries, the sample index in the middle."""

    count: int
    dim: int = 0
    outer: int = 1
    inner: int = 1

    def at(self, dim: int) -> Samples:
        """The same samples in another dimension."""
        return Samples(self.count, dim, self.outer, self.inner)

    def reshaped(self, old: Sequence[int], new: Sequence[int]) -> Samples:
        """After a reshape, which keeps the row-major order of all entries."""
        step = self.inner * prod(old[self.dim + 1 :])
        below = 1
        for dim in reversed(range(len(new))):
            size = new[dim]
            inner, rest = divmod(step, below)
            if step < below * size and rest == 0 and size % (self.count * inner) == 0:
                return Samples(self.count, dim, size // (self.count * inner), inner)
            below *= size
        raise MixesSamples(f"a reshape from {tuple(old)} to {tuple(new)} splits the samples")

    def permuted(self, order: Sequence[int]) -> Samples:
        """After a permutation of dimensions, result dimension d being input dimension order[d]."""
        return self.at(list(order).index(self.dim))

    def without(self, dims: Sequence[int], keepdim: bool) -> Samples:
        """After a reduction over ``dims``, none of which may hold samples."""
        if self.dim in dims:
            raise MixesSamples(f"a reduction over dimension {self.dim} runs over samples")
        return self if keepdim else self.at(self.dim - sum(d < self.dim for d in dims))

    def block(self, first: int, size: int) -> Samples:
        """In a range of the dimension, which must hold each sample equally often."""
        step = self.count * self.inner
        if first % step or size % step or not size:
            raise MixesSamples(f"it takes a part of dimension {self.dim}, which holds samples")
        return Samples(self.count, self.dim, size // step, self.inner)

    def joined(self, parts: Sequence[Samples | None]) -> Samples:
        """After tensors with these samples were joined along the dimension."""
        outer = 0
        for part in parts:
            if part is None or (part.dim, part.inner) != (self.dim, self.inner):
                raise MixesSamples(f"it joins tensors along dimension {self.dim}, the samples'")
            outer += part.outer
        return Samples(self.count, self.dim, outer, self.inner)

    def split(self, tensor: Tensor, leading: int = 0) -> Tensor:
        """View of a tensor that has ``leading`` further dimensions, samples moved to the front.

        [L.., *shape] becomes [L.., N, *shape'], where ``dim`` of the shape is replaced by the pair
        (outer, inner).
        """
        dim = leading + self.dim
        if tensor.dim() == leading:
            tensor = tensor.unsqueeze(-1)
        parts = tensor.unflatten(dim, (self.outer, self.count, self.inner))
        return parts.movedim(dim + 1, leading)

    def join(self, tensor: Tensor, leading: int = 0) -> Tensor:
        """Undo ``split``: [L.., N, *shape'] becomes [L.., *shape]."""
        dim = leading + self.dim
        return tensor.movedim(leading, dim + 1).flatten(dim, dim + 2)


def follow(count: int, shape: Sequence[int]) -> Samples:
    """Samples in a tensor of a batch of one, where every entry belongs to the only sample."""
    return Samples(count, 0, shape[0] if shape else 1, 1)


def elementwise(
    operands: Sequence[tuple[Samples | None, Sequence[int]]], shape: Sequence[int]
) -> Samples | None:
    """Samples in the broadcast of tensors, each given by its samples and shape."""
    found: Samples | None = None
    for samples, own in operands:
        if samples is None:
            continue
        if samples.count == 1:
            return follow(1, shape)
        here = samples.at(samples.dim + len(shape) - len(own))
        if found is not None and found != here:
            raise MixesSamples("its operands hold their samples in different dimensions")
        found = here
    return found


def along(samples: Samples, dims: Sequence[int], what: str) -> Samples:
    """Samples after an op that keeps the shape and works along ``dims`` only."""
    if samples.dim in dims:
        raise MixesSamples(f"{what} along dimension {samples.dim}, which holds samples")
    return samples


def common(found: Iterable[Samples | None]) -> Samples | None:
    """The samples that all operands have in common."""
    layouts = set(found) - {None}
    if len(layouts) > 1:
        raise MixesSamples("its operands hold their samples in different dimensions")
    return layouts.pop() if layouts else None


def per_sample(
    s: Tensor, samples: Samples, shape: Sequence[int], rows: slice = slice(None)
) -> Tensor:
    """Sum of columns [V, *out] over what a parameter of this shape was broadcast along.

    The result is [V, n, *shape] for the samples in ``rows``; out.shape must be a broadcast of
    ``shape``.
    """
    out = s.shape[1:]
    if not out:
        return s.reshape(-1, 1, *shape)[:, rows]
    aligned = (1,) * (len(out) - len(shape)) + tuple(shape)
    if samples.outer == samples.inner == 1 and samples.dim == 0 and aligned[0] == 1:
        parts = s if rows == slice(None) else s[:, rows]
        dims = [k for k, wanted in enumerate(aligned[1:], 2) if wanted == 1 != s.shape[k]]
        parts = parts.sum(dims) if dims else parts
        return parts.reshape(*parts.shape[:2], *shape)
    parts = samples.split(s, 1)[:, rows]  # [V, n, *out with (outer, inner) at dim]
    whole = aligned[samples.dim] > 1
    if whole and samples.count > 1:
        raise MixesSamples(f"a parameter of shape {tuple(shape)} has one entry for each sample")
    pair = (samples.outer, samples.inner) if whole else (1, 1)
    target = [*aligned[: samples.dim], *pair, *aligned[samples.dim + 1 :]]
    dims = [
        2 + d
        for d, (wanted, size) in enumerate(zip(target, parts.shape[2:], strict=True))
        if wanted == 1 and size != 1
    ]
    if dims:
        parts = parts.sum(dims, keepdim=True)
    return parts.reshape(*parts.shape[:2], *shape)


def spread(g: Tensor, samples: Samples, rows: slice = slice(None)) -> Tensor:
    """[V, *shape], entries of all samples, as [V, n, *shape] for the samples in ``rows``.

    Row n of the result keeps the entries of sample n; all others are zero.
    """
    if g.dim() == 1:
        return g.unsqueeze(1)[:, rows]
    parts = samples.split(g, 1)[:, rows].movedim(1, -1)
    dim = 2 + samples.dim
    first, stop, _ = rows.indices(samples.count)
    size = (*g.shape[1 : 1 + samples.dim], samples.outer, samples.count, samples.inner)
    out = g.new_zeros(g.shape[0], stop - first, *size, *g.shape[dim:])
    window = out.narrow(dim + 1, first, stop - first)
    window.diagonal(dim1=1, dim2=dim + 1).copy_(parts)
    return out.reshape(g.shape[0], stop - first, *g.shape[1:])


def units(m: Tensor, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """For each entry j of a sample's result: ones at entry j of all samples, and m[:, j]."""
    parts = samples.split(m)
    sizes = parts.shape[1:]
    for j in range(prod(sizes)):
        place = [slice(None)]
        for size in reversed(sizes):
            j, entry = divmod(j, size)
            place.insert(1, slice(entry, entry + 1))
        unit = torch.zeros_like(parts)
        unit[tuple(place)] = 1
        yield samples.join(unit).reshape(m.shape), parts[tuple(place)].flatten()
