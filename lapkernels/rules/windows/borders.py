"""Windows through padding with copies of entries, and through interpolation.

The pull-back of reflect or replicate padding moves an entry in the padding to the one it copies,
along one dimension after the other. Only windows at a border have such entries; others just get
other coordinates. Interpolation by whole factors is such a padding, then a transposed convolution
of each channel by one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops import Geometry
from lapkernels.rules.padding import CopiedPad
from lapkernels.rules.resampling import Interpolated
from lapkernels.rules.windows.lanes import Place
from lapkernels.rules.windows.window import Window


@dataclass(frozen=True)
class Copies:
    """Padding of images of this ``size`` along each dimension.

    The padded entries copy those at ``sources``; the first ``before`` of them are padding.
    """

    size: tuple[int, ...]
    before: tuple[int, ...]
    sources: tuple[Tensor, ...]

    @classmethod
    def of(cls, size: Sequence[int], sides: Sequence[tuple[int, int]], mode: str) -> Copies:
        """Padding in a mode of ``F.pad``."""
        sources: list[Tensor] = []
        for length, pair in zip(size, sides, strict=True):
            index = torch.arange(length, dtype=torch.float64, device="cpu").reshape(1, 1, length)
            sources.append(F.pad(index, pair, mode=mode).flatten().long())
        return cls(tuple(size), tuple(first for first, _ in sides), tuple(sources))

    def place_below(self, place: Place, extent: Sequence[int]) -> Place:
        """Windows before the padding from those behind it, for pixels up to ``extent``."""
        firsts: list[int] = []
        widths: list[int] = []
        for d, (source, before) in enumerate(zip(self.sources, self.before, strict=True)):
            starts = torch.arange(extent[d]).unsqueeze(1) * place.step[d] + place.first[d]
            at = starts + torch.arange(place.width[d])
            inside = (at >= 0) & (at < len(source))
            reached = source[at.clamp(0, len(source) - 1)] - (starts - before)
            reached = torch.where(inside, reached, 0)
            low, high = min(0, int(reached.min())), max(place.width[d] - 1, int(reached.max()))
            firsts.append(place.first[d] - before + low)
            widths.append(high - low + 1)
        return Place(place.step, tuple(firsts), tuple(widths))

    def pull(self, window: Window) -> Window:
        """Columns before the padding from those behind it, which are zero outside the image."""
        lanes, place = window.lanes, window.place
        first = tuple(f - b for f, b in zip(place.first, self.before, strict=True))
        below = self.place_below(place, lanes.extent)
        s = replace(window, place=replace(place, first=first)).moved(below).s
        s = s.clone() if s is window.s else s
        for d, (source, before) in enumerate(zip(self.sources, self.before, strict=True)):
            start = lanes.starts(d, s.device) * below.step[d] + below.first[d]
            start = start.expand(lanes.count, *start.shape[1:]).flatten()
            at = torch.arange(below.width[d], device=s.device).unsqueeze(1) + start + before
            padding = (at < before) | (at >= before + self.size[d])
            padding &= (at >= 0) & (at < len(source))
            entry, lane = padding.nonzero(as_tuple=True)
            to = source.to(s.device)[at[entry, lane]] - start[lane]
            lines = s.movedim(2 + d, 0).movedim(-1, 1)  # [width, L, V, C, ...], a view
            moved = lines[entry, lane]
            lines.index_put_((entry, lane), moved.new_zeros(()))
            lines.index_put_((to, lane), moved, accumulate=True)
        return replace(window, s=s, place=below)


def copies_of(rule: CopiedPad) -> Copies:
    """The padding of a rule."""
    pairs = list(zip(rule.sides[::2], rule.sides[1::2], strict=True))
    return Copies.of(rule.shape[-rule.spatial :], pairs[::-1], rule.mode)


@dataclass(frozen=True)
class Interpolation:
    """Copies as padding, then the taps of one ``kernel`` for each channel."""

    copies: Copies
    kernel: Tensor
    geometry: Geometry


def interpolation_of(rule: Interpolated, like: Tensor) -> Interpolation | None:
    """An interpolation by whole factors in parts; None for any other."""
    factors, kernels, sides, padding = [], [], [], []
    for d, (small, large) in enumerate(zip(rule.shape[2:], rule.size, strict=True)):
        factor, rest = divmod(large, small)
        whole = rule.matrix(d, like.double())  # [large, small]
        middle = whole[:, small // 2].nonzero().flatten().tolist()
        if rest or not middle:
            return None
        first, last = middle[0], middle[-1]
        reach = -(-(last - first + 1) // factor)
        pad = factor * (small // 2 + reach) - first
        padded = whole.new_zeros(large, small + 2 * reach)
        kernel = whole[first : last + 1, small // 2]
        # Column m of the padded image has the same taps, factor entries further each.
        for m in range(small + 2 * reach):
            start = factor * m - pad
            at = torch.arange(len(kernel), device=whole.device) + start
            inside = (at >= 0) & (at < large)
            padded[at[inside], m] = kernel[inside]
        source = Copies.of([small], [(reach, reach)], "replicate").sources[0].to(like.device)
        if not torch.allclose(torch.zeros_like(whole).index_add_(1, source, padded), whole):
            return None
        factors.append(factor)
        kernels.append(kernel.to(like.dtype))
        sides.append((reach, reach))
        padding.append(pad)
    kernel = kernels[0]
    for other in kernels[1:]:
        kernel = kernel.unsqueeze(-1) * other
    taps = Geometry.conv(tuple(kernel.shape), tuple(factors), tuple(padding), transposed=True)
    return Interpolation(Copies.of(rule.shape[2:], sides, "replicate"), kernel, taps)
