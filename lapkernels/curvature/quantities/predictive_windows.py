"""Variances of image-shaped outputs: unit columns at pixels, carried as windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from lapkernels.curvature.backward.carry import Stage
from lapkernels.curvature.backward.columns import Collector
from lapkernels.curvature.backward.layout import Tile, tiles
from lapkernels.curvature.backward.windows import WindowWalk, as_lanes
from lapkernels.curvature.passes.passes import Pass
from lapkernels.ops.base.chunks import slices
from lapkernels.rules.windows.lanes import Points


class LaneSum(Collector):
    """Sums over parameters, for each column, in ``result`` [N, V]."""

    result: Tensor


def local_sums(one: Pass, stage: Stage, outputs: Tensor | None, total: LaneSum) -> Tensor:
    """The ``total`` of a unit column at each output, [N, *out].

    ``outputs`` [N, k] chooses flat outputs of each sample, the result is then [N, k].
    """
    if outputs is None:
        return _everywhere(one, stage, total)
    return _at_points(one, stage, outputs, total)


def _everywhere(one: Pass, stage: Stage, total: LaneSum) -> Tensor:
    f, layout, start = one.prediction, stage.layout, stage.start
    assert layout is not None and start is not None
    local = start.local(one.graph, torch.ones_like(f).unsqueeze(0))
    walks = WindowWalk(one.graph, stage.section)
    size = local.root.shape[3:]
    image = local.root.new_empty(local.root.shape[1:])
    for tile, where in tiles(one.count, size, layout.multiple, stage.step):
        columns = local(where)
        total.result = f.new_zeros(one.count, len(columns) * tile.lanes.pixels)
        walks.pull(tile, as_lanes(columns, len(size)), total)
        part = image[(..., *where)]
        part.copy_(total.result.reshape(part.shape))
    index, count = start.index(one.graph).flatten(), f.shape[1:].numel()
    # What a crop left out goes to a last column: to find it would wait for a device.
    flat = f.new_empty(one.count, count + 1)
    flat.index_copy_(1, torch.where(index < 0, count, index), image.flatten(1).to(f.dtype))
    return flat[:, :count].reshape(f.shape)


def _at_points(one: Pass, stage: Stage, outputs: Tensor, total: LaneSum) -> Tensor:
    f, layout, start = one.prediction, stage.layout, stage.start
    assert layout is not None and start is not None
    root = start.root(one.graph, torch.ones_like(f).unsqueeze(0))[0]
    channels, *size = root.shape[1:]
    walks = WindowWalk(one.graph, stage.section)
    feature = start.index(one.graph).flatten()
    entry = feature.new_empty(f.shape[1:].numel())
    entry[feature[feature >= 0]] = (feature >= 0).nonzero().flatten()
    outputs = entry[outputs]  # flat entries of the image
    at = torch.stack(torch.unravel_index(outputs % prod(size), tuple(size)), -1)  # [N, k, dims]
    result = f.new_empty(outputs.shape)
    for residue, index, valid in _by_residue(at, layout.multiple, stage.step):
        grid = at.gather(1, index.unsqueeze(2).expand(-1, -1, len(size)))
        grid = (grid - grid.new_tensor(residue)) // grid.new_tensor(layout.multiple)
        lanes = Points(grid.clamp_min_(0))
        flat = outputs.gather(1, index)
        channel = (flat // prod(size)).reshape(1, 1, -1)
        entries = root.flatten(1).gather(1, flat).reshape(1, 1, -1)
        s = f.new_zeros(1, channels, lanes.size).scatter_(1, channel, entries)
        total.result = f.new_zeros(index.shape)
        tile = Tile(residue, (0,) * len(size), lanes)
        walks.pull(tile, s.reshape(1, channels, *(1,) * len(size), -1), total)
        result.scatter_(1, index, torch.where(valid, total.result, result.gather(1, index)))
    return result


def _by_residue(
    at: Tensor, multiple: Sequence[int], most: int
) -> Iterator[tuple[tuple[int, ...], Tensor, Tensor]]:
    """Points of equal residue in the steps of a layout: the residue, and their indices [N, k'].

    A sample with fewer such points than another is padded with points marked invalid.
    """
    for residue in product(*map(range, multiple)):
        alike = (at % at.new_tensor(multiple) == at.new_tensor(residue)).all(-1)
        width = int(alike.sum(1).max()) if alike.numel() else 0
        order = alike.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
        for part in slices(width, most):
            index = order[:, part]
            yield residue, index, alike.gather(1, index)
