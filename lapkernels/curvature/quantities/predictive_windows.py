"""Variances of image-shaped outputs by locality: unit columns at pixels, carried as windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from lapkernels.curvature.backward.budget import default_budget
from lapkernels.curvature.backward.columns import Collector
from lapkernels.curvature.backward.cost import chosen_way
from lapkernels.curvature.backward.windows import (
    Layout,
    LocalWalks,
    Tile,
    local_layout,
    most_pixels,
    tiles,
)
from lapkernels.curvature.passes.passes import Pass
from lapkernels.curvature.recording.graph import Section
from lapkernels.ops.base.chunks import slices
from lapkernels.rules.windows.lanes import Points


class LaneSum(Collector):
    """Adds up something of each column in ``result`` [N, V]."""

    result: Tensor


def unit_layout(one: Pass, count: int) -> Layout | None:
    """The windows of ``count`` unit columns; None where columns as images cost less."""
    graph, layout = one.graph, None
    if not one.by_autograd:
        layout = local_layout(graph, Section.whole(graph))
    if layout is None:
        return None
    way = chosen_way(graph, [], count, layout=layout, budget=_budget(one))
    return layout if way.windows else None


def local_sums(one: Pass, layout: Layout, outputs: Tensor | None, total: LaneSum) -> Tensor:
    """What ``total`` makes of a unit column at each output, [N, *out].

    ``outputs`` [N, k] chooses flat outputs of each sample, the result is then [N, k].
    """
    if outputs is None:
        return _everywhere(one, layout, total)
    return _at_points(one, layout, outputs, total)


def _budget(one: Pass) -> int:
    size = one.prediction.element_size()
    return default_budget(one.graph, size) if one.budget is None else one.budget


def _everywhere(one: Pass, layout: Layout, total: LaneSum) -> Tensor:
    f = one.prediction
    count, channels, *size = f.shape
    walks = LocalWalks(one.graph, Section.whole(one.graph))
    most = most_pixels(layout, channels * count * f.element_size(), _budget(one))
    units = torch.eye(channels, dtype=f.dtype, device=f.device)
    units = units.reshape(channels, channels, *(1,) * len(size), 1)
    result = torch.empty_like(f)
    for tile, where in tiles(count, size, layout.multiple, most):
        total.result = f.new_zeros(count, channels * tile.lanes.pixels)
        walks.pull(tile, units.expand(*units.shape[:-1], tile.lanes.size), total)
        part = result[(..., *where)]
        part.copy_(total.result.reshape(part.shape))
    return result


def _at_points(one: Pass, layout: Layout, outputs: Tensor, total: LaneSum) -> Tensor:
    f = one.prediction
    count, channels, *size = f.shape
    walks = LocalWalks(one.graph, Section.whole(one.graph))
    most = most_pixels(layout, count * f.element_size(), _budget(one))
    at = torch.stack(torch.unravel_index(outputs % prod(size), tuple(size)), -1)  # [N, k, dims]
    result = f.new_empty(outputs.shape)
    for residue, index, valid in _by_residue(at, layout.multiple, most):
        grid = at.gather(1, index.unsqueeze(2).expand(-1, -1, len(size)))
        lanes = Points((grid - grid.new_tensor(residue)) // grid.new_tensor(layout.multiple))
        channel = (outputs // prod(size)).gather(1, index).reshape(1, 1, -1)
        s = f.new_zeros(1, channels, lanes.size).scatter_(1, channel, 1.0)
        total.result = f.new_zeros(index.shape)
        tile = Tile(residue, (0,) * len(size), lanes)
        walks.pull(tile, s.reshape(1, channels, *(1,) * len(size), -1), total)
        result.scatter_(1, index, torch.where(valid, total.result, result.gather(1, index)))
    return result


def _by_residue(
    at: Tensor, multiple: Sequence[int], most: int
) -> Iterator[tuple[tuple[int, ...], Tensor, Tensor]]:
    """Points that lie alike in the steps of a layout: their residue, and which [N, k'] they are.

    A sample that has fewer such points than another is filled up with points that are not valid.
    """
    for residue in product(*map(range, multiple)):
        alike = (at % at.new_tensor(multiple) == at.new_tensor(residue)).all(-1)
        width = int(alike.sum(1).max()) if alike.numel() else 0
        order = alike.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
        for part in slices(width, most):
            index = order[:, part]
            yield residue, index, alike.gather(1, index)
