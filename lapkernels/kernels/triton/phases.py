"""The transposed relation between two grids, one phase of the stride at a time.

Taps k carry position u of a small grid to t = u * stride - padding + k * dilation of a large one.
In the transposed direction only every stride-th tap reaches a u. All t = f + stride * t' of
one phase f share their taps, k = first + j * stride / gcd, and meet

    u = t' + origin - j * dilation / gcd,    origin = (f + padding - first * dilation) / stride,

gcd being that of stride and dilation: a plain correlation with few taps, without the zeros that a
transposed convolution inserts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import triton
import triton.language as tl

from lapkernels.kernels.triton.operands import Triple, triple


class Phases(NamedTuple):
    """Known when a kernel is compiled; `inverse` is that of dilation / gcd modulo stride / gcd."""

    kernel_size: Triple
    stride: Triple
    dilation: Triple
    common: Triple
    inverse: Triple

    @property
    def number(self) -> int:
        """The number of phases."""
        return self.stride[0] * self.stride[1] * self.stride[2]

    @property
    def spread(self) -> Triple:
        """Step between taps of one phase, on the small grid."""
        first, second, third = (-d // g for d, g in zip(self.dilation, self.common, strict=True))
        return first, second, third

    def positions(self, size: Sequence[int]) -> Triple:
        """Sizes of the first phase of the large grid, which is the largest."""
        first, second, third = (
            triton.cdiv(length, s) for length, s in zip(triple(size, 1), self.stride, strict=True)
        )
        return first, second, third

    @property
    def taps(self) -> int:
        """The most taps a phase has."""
        count = 1
        for k, s, g in zip(self.kernel_size, self.stride, self.common, strict=True):
            count *= triton.cdiv(k, s // g)
        return count


def phases(kernel_size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Phases:
    """The phases of a layer."""
    steps, spread = triple(stride, 1), triple(dilation, 1)
    common = [gcd(s, d) for s, d in zip(steps, spread, strict=True)]
    inverse = [
        pow(d // g, -1, s // g) if s > g else 0
        for s, d, g in zip(steps, spread, common, strict=True)
    ]
    return Phases(triple(kernel_size, 1), steps, spread, triple(common, 1), triple(inverse, 1))


@triton.jit
def phase_along(
    f, size, padding,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    COMMON: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Positions t', origin, first tap and number of taps of phase `f` in one dimension."""
    shifted = f + padding
    first = shifted // COMMON * INVERSE % (STRIDE // COMMON)
    count = (KERNEL - first + STRIDE // COMMON - 1) // (STRIDE // COMMON)
    count = tl.where((shifted % COMMON == 0) & (first < KERNEL), count, 0)
    return (size - f + STRIDE - 1) // STRIDE, (shifted - first * DILATION) // STRIDE, first, count


@triton.jit
def phase_at(flat, sizes, padding, PHASES: tl.constexpr):
    """The same of the flat phase in all dimensions, the phase itself first: five triples."""
    f2 = flat % PHASES[1][2]
    rest = flat // PHASES[1][2]
    f0 = rest // PHASES[1][1]
    f1 = rest % PHASES[1][1]
    size0, origin0, first0, count0 = phase_along(
        f0, sizes[0], padding[0],
        PHASES[0][0], PHASES[1][0], PHASES[2][0], PHASES[3][0], PHASES[4][0],
    )  # fmt: skip
    size1, origin1, first1, count1 = phase_along(
        f1, sizes[1], padding[1],
        PHASES[0][1], PHASES[1][1], PHASES[2][1], PHASES[3][1], PHASES[4][1],
    )  # fmt: skip
    size2, origin2, first2, count2 = phase_along(
        f2, sizes[2], padding[2],
        PHASES[0][2], PHASES[1][2], PHASES[2][2], PHASES[3][2], PHASES[4][2],
    )  # fmt: skip
    return (
        (f0, f1, f2),
        (size0, size1, size2),
        (origin0, origin1, origin2),
        (first0, first1, first2),
        (count0, count1, count2),
    )


@triton.jit
def at_least_one(triple):
    """A divisor: a phase may have no position, or no tap."""
    return tl.maximum(triple[0], 1), tl.maximum(triple[1], 1), tl.maximum(triple[2], 1)
