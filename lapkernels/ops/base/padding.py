"""The squared-kernel convolution of a layer whose padding repeats its own input.

With reflect, replicate or circular padding an input pixel is read at several padded positions. Let
r map a padded position to the pixel it copies. Then

    m_in[i, p] = sum_{o, t} m[o, t] (sum_{k : r(t, k) = p} W[o, i, k])²,

the plain squared convolution on the padded grid, folded back by r, plus the products of two taps
that fall on copies of one pixel. Those exist at the border only, for the few pairs found here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops.base.geometry import Geometry, once_per_size


class _Axis(NamedTuple):
    """One dimension: the input index of every padded index, and pairs of taps that read one pixel.

    ``meetings[a, b]``: the output positions at which taps a and b read one pixel, and that pixel.
    """

    source: Tensor
    meetings: dict[tuple[int, int], tuple[Tensor, Tensor]]


def fold_padding(
    m: Tensor, weight: Tensor, size: tuple[int, ...], geometry: Geometry, op: Callable[..., Tensor]
) -> Tensor:
    """m at the input, [N, I, *size]; ``op`` is the squared convolution without padding."""
    # Tensor subclasses, such as a tracer's, would put their own kind into the cache.
    find = _kept_axes if type(m) is Tensor else _axes
    axes = find(size, tuple(m.shape[2:]), geometry, m.device)
    bare = geometry.without_padding()
    padded_size = [len(axis.source) for axis in axes]
    value = op(m, weight, padded_size, *bare.arguments, False, None, "identity", 0.0)
    for d, axis in enumerate(axes):
        shape = [*value.shape[: 2 + d], size[d], *value.shape[3 + d :]]
        value = value.new_zeros(shape).index_add_(2 + d, axis.source, value)
    _add_shared_taps(value, m, weight, axes, geometry)
    return value


@torch.inference_mode(False)
def _axes(
    size: tuple[int, ...], output: tuple[int, ...], geometry: Geometry, device: torch.device
) -> list[_Axis]:
    """Computed on the host, where all sizes are known, and copied to the device."""
    axes = []
    for d, length in enumerate(size):
        index = torch.arange(length, dtype=torch.float64, device="cpu").reshape(1, 1, length)
        padded = F.pad(index, geometry.padding[d], mode=geometry.padding_mode)
        source = padded.flatten().long()
        reads = [
            source[k * geometry.dilation[d] :][:: geometry.stride[d]][: output[d]]
            for k in range(geometry.kernel_size[d])
        ]
        meetings = {}
        for a, b in product(range(geometry.kernel_size[d]), repeat=2):
            where = (reads[a] == reads[b]).nonzero().flatten()
            meetings[a, b] = where.to(device), reads[a][where].to(device)
        axes.append(_Axis(source.to(device), meetings))
    return axes


# Cached, as a copy would synchronise with the GPU at every call.
_kept_axes = once_per_size(_axes)


def _add_shared_taps(
    value: Tensor, m: Tensor, weight: Tensor, axes: list[_Axis], geometry: Geometry
) -> None:
    """Add 2 W[k] W[k'] m[t] for each pair of taps k < k' that read one pixel from position t."""
    groups, (n, o) = geometry.groups, m.shape[:2]
    grouped = weight.reshape(groups, o // groups, *weight.shape[1:])
    taps = list(product(*(range(k) for k in geometry.kernel_size)))
    for index, first in enumerate(taps):
        for second in taps[index + 1 :]:
            pairs = zip(axes, first, second, strict=True)
            where, pixels = zip(*(axis.meetings[a, b] for axis, a, b in pairs), strict=True)
            if any(len(positions) == 0 for positions in where):
                continue
            product_of_taps = grouped[(..., *first)] * grouped[(..., *second)]
            part = m[(slice(None), slice(None), *torch.meshgrid(*where, indexing="ij"))]
            part = part.reshape(n, groups, o // groups, part.shape[2:].numel())
            term = 2 * torch.einsum("goi,ngot->ngit", product_of_taps, part).flatten(1, 2)
            value.flatten(2).index_add_(2, _flat_index(pixels, value.shape[2:]), term)


def _flat_index(coordinates: Sequence[Tensor], size: torch.Size) -> Tensor:
    grid = torch.meshgrid(*coordinates, indexing="ij")
    flat = torch.zeros_like(grid[0])
    for coordinate, length in zip(grid, size, strict=True):
        flat = flat * length + coordinate
    return flat.flatten()
