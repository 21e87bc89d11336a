"""Ops differentiated by autograd whose samples are tracked explicitly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from lapkernels.rules.base.local_gradient import LocalGradient
from lapkernels.rules.base.rule import Call, Operand, Rule, register_rule, whole_weight
from lapkernels.rules.base.samples import MixesSamples, Samples, along, common
from lapkernels.rules.rearrangement import labels, located
from lapkernels.rules.reductions import dimensions


@register_rule("aten::cumprod", "aten::logcumsumexp")
def cumulative(call: Call, x: Operand, dim: int, **kwargs: Any) -> Rule:
    """Cumulative along one dimension: columns and diagonal by autograd."""
    dims = dimensions(dim, len(x.shape))
    samples = call.place(x.samples, lambda where: along(where, dims, "it accumulates"))
    return LocalGradient(call, x, dim, samples=samples, **kwargs)


@register_rule("aten::nonzero", "aten::masked_select")
def counted(call: Call, *args: Any, **kwargs: Any) -> Rule:
    """A result whose size depends on values; allowed in a batch of one."""
    if call.count > 1 and any(operand.samples is not None for operand in call.operands):
        raise MixesSamples("the size of its result depends on all samples")
    return LocalGradient(call, *args, samples=call.everywhere(), **kwargs)


@register_rule("aten::_trilinear")
def trilinear(
    call: Call,
    a: Operand,
    b: Operand,
    c: Operand,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    summed: Sequence[int],
    *args: Any,
    **kwargs: Any,
) -> Rule:
    """Products of three tensors, summed over some dimensions, by autograd."""
    found: list[Samples | None] = []
    for operand, new in ((a, expand1), (b, expand2), (c, expand3)):
        rank = len(operand.shape) + len(new)
        own = [d for d in range(rank) if d not in new]

        def place(where: Samples, own: list[int] = own) -> Samples:
            return where.at(own[where.dim]).without(list(summed), keepdim=False)

        found.append(call.move(operand.samples, place))
    arguments = (a, b, c, expand1, expand2, expand3, summed, *args)
    return LocalGradient(call, *arguments, samples=[common(found)], **kwargs)


@register_rule("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(
    call: Call, weight: Operand, index: Operand, offsets: Operand, *args: Any, **kwargs: Any
) -> Rule:
    """Sums, means or maxima of rows of a weight in bags of indices; by autograd."""
    whole_weight(call, weight)
    if offsets.samples is not None and call.count > 1:
        raise MixesSamples("its bags depend on the sample")

    def place(where: Samples) -> Samples:
        bags = len(offsets.tensor)
        tokens = labels(where, index)
        starts = [*offsets.tensor.tolist(), len(tokens)][: bags + 1]
        if any(first >= last for first, last in zip(starts, starts[1:], strict=False)):
            raise MixesSamples("some of its bags are empty")
        found = torch.stack([tokens[first:last].amax() for first, last in pairwise(starts)])
        least = torch.stack([tokens[first:last].amin() for first, last in pairwise(starts)])
        if not torch.equal(found, least):
            raise MixesSamples("a bag holds several samples")
        return located(where, found)

    (where, *_) = call.place(index.samples, place)
    samples = (where, *(None for _ in call.outputs[1:]))
    return LocalGradient(call, weight, index, offsets, *args, samples=samples, **kwargs)


@register_rule("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::affine_grid_generator")
def sampled(call: Call, *args: Any, **kwargs: Any) -> Rule:
    """grid_sample: image n is read at the coordinates of row n."""

    def place(where: Samples) -> Samples:
        if where.dim != 0:
            raise MixesSamples("it needs samples in dimension 0")
        return where

    found = {operand.samples for operand in call.operands} - {None}
    if len(found) > 1 and call.count > 1:
        raise MixesSamples("its image and its grid hold samples in different dimensions")
    samples = call.place(next(iter(found), None), place)
    return LocalGradient(call, *args, samples=samples, **kwargs)


@register_rule("aten::_cdist_forward")
def distances(call: Call, a: Operand, b: Operand, *args: Any, **kwargs: Any) -> Rule:
    """Distances of the rows of a from the rows of b, [*batch, A, B]."""
    rank = call.out.dim()
    found: list[Samples | None] = []
    for operand, free in ((a, rank - 2), (b, rank - 1)):
        own = len(operand.shape)

        def place(where: Samples, own: int = own, free: int = free) -> Samples:
            if where.dim == own - 1:
                raise MixesSamples("it sums over a dimension that holds samples")
            return where.at(free) if where.dim == own - 2 else where.at(where.dim + rank - own)

        found += call.place(operand.samples, place)[:1]
    return LocalGradient(call, a, b, *args, samples=[common(found)], **kwargs)
