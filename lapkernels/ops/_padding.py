"""The squared-kernel convolution of a layer whose padding repeats its own input.

With reflect, replicate or circular padding an input pixel is read at several padded positions. Let
r map a padded position to the pixel it copies. Then

    m_in[i, p] = sum_{o, t} m[o, t] (sum_{k : r(t, k) = p} W[o, i, k])²,

the plain squared convolution on the padded grid, folded back by r, plus the products of two taps
that fall on copies of one pixel. Those exist at the border only, for the few pairs found here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops.geometry import Geometry


def fold_padding(
    m: Tensor, weight: Tensor, size: tuple[int, ...], geometry: Geometry, op: Callable[..., Tensor]
) -> Tensor:
    """m at the input, [N, I, *size]; ``op`` is the squared convolution without padding."""
    maps = [_source(length, d, geometry) for d, length in enumerate(size)]
    bare = geometry.without_padding()
    padded_size = [len(source) for source in maps]
    value = op(m, weight, padded_size, *bare.arguments, False, None, "identity", 0.0)
    for d, source in enumerate(maps):
        shape = [*value.shape[: 2 + d], size[d], *value.shape[3 + d :]]
        value = value.new_zeros(shape).index_add_(2 + d, source.to(value.device), value)
    _add_shared_taps(value, m, weight, maps, geometry)
    return value


def _source(length: int, d: int, geometry: Geometry) -> Tensor:
    """The input index behind every padded index of dimension ``d``."""
    before, after = geometry.padding[d]
    index = torch.arange(length, dtype=torch.float64).reshape(1, 1, length)
    return F.pad(index, (before, after), mode=geometry.padding_mode).flatten().long()


def _add_shared_taps(
    value: Tensor, m: Tensor, weight: Tensor, maps: list[Tensor], geometry: Geometry
) -> None:
    """Add 2 W[k] W[k'] m[t] for each pair of taps k < k' that read one pixel from position t."""
    # reads[d][k]: the pixel that tap k reads at each output position along dimension d.
    reads = [
        torch.stack(
            [
                source[k * geometry.dilation[d] :][:: geometry.stride[d]][: m.shape[2 + d]]
                for k in range(geometry.kernel_size[d])
            ]
        )
        for d, source in enumerate(maps)
    ]
    groups, (n, o) = geometry.groups, m.shape[:2]
    grouped = weight.reshape(groups, o // groups, *weight.shape[1:])
    taps = list(product(*(range(k) for k in geometry.kernel_size)))
    for index, first in enumerate(taps):
        for second in taps[index + 1 :]:
            where = [
                (read[a] == read[b]).nonzero().flatten()
                for read, a, b in zip(reads, first, second, strict=True)
            ]
            if any(len(positions) == 0 for positions in where):
                continue
            product_of_taps = grouped[(..., *first)] * grouped[(..., *second)]
            part = m[(slice(None), slice(None), *torch.meshgrid(*where, indexing="ij"))]
            part = part.reshape(n, groups, o // groups, part.shape[2:].numel())
            term = 2 * torch.einsum("goi,ngot->ngit", product_of_taps, part).flatten(1, 2)
            target = _flat_index(
                [r[a][w] for r, a, w in zip(reads, first, where, strict=True)], value.shape[2:]
            )
            value.flatten(2).index_add_(2, target.to(value.device), term)


def _flat_index(coordinates: list[Tensor], size: torch.Size) -> Tensor:
    grid = torch.meshgrid(*coordinates, indexing="ij")
    flat = torch.zeros_like(grid[0])
    for coordinate, length in zip(grid, size, strict=True):
        flat = flat * length + coordinate
    return flat.flatten()
