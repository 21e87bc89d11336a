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
from lapkernels.curvature.backward.windows import WindowWalk
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
    f, layout = one.prediction, stage.layout
    assert layout is not None
    count, channels, *size = f.shape
    walks = WindowWalk(one.graph, stage.section)
    units = torch.eye(channels, dtype=f.dtype, device=f.device)
    units = units.reshape(channels, channels, *(1,) * len(size), 1)
    result = torch.empty_like(f)
    for tile, where in tiles(count, size, layout.multiple, stage.step):
        total.result = f.new_zeros(count, channels * tile.lanes.pixels)
        walks.pull(tile, units.expand(*units.shape[:-1], tile.lanes.size), total)
        part = result[(..., *where)]
        part.copy_(total.result.reshape(part.shape))
    return result


def _at_points(one: Pass, stage: Stage, outputs: Tensor, total: LaneSum) -> Tensor:
    f, layout = one.prediction, stage.layout
    assert layout is not None
    count, channels, *size = f.shape
    walks = WindowWalk(one.graph, stage.section)
    at = torch.stack(torch.unravel_index(outputs % prod(size), tuple(size)), -1)  # [N, k, dims]
    result = f.new_empty(outputs.shape)
    for residue, index, valid in _by_residue(at, layout.multiple, stage.step):
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
