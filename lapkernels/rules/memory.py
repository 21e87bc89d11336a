"""In-place writes to a part of a tensor, and reads of a part afterwards.

A part is given by its size, strides and offset in the memory of a contiguous tensor. Both move
entries and do not change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lapkernels.ops.base.precision import wide
from lapkernels.rules.base.rule import Call, Operand, register_rule
from lapkernels.rules.base.samples import MixesSamples, Samples, common, elementwise
from lapkernels.rules.elementwise import sum_to_shape
from lapkernels.rules.shape import Movement


@dataclass(frozen=True)
class Region:
    """A strided part of a contiguous tensor of shape ``whole``."""

    whole: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, part: Tensor, whole: Tensor) -> Region:
        """The region of a view."""
        return cls(tuple(whole.shape), tuple(part.shape), part.stride(), int(part.storage_offset()))

    def read(self, s: Tensor) -> Tensor:
        """View of the part in columns [V, *whole]."""
        s = s.contiguous()
        step = s.stride(0) if s.dim() else 0
        return s.as_strided((s.shape[0], *self.size), (step, *self.stride), self.offset)

    def strides(self) -> tuple[int, ...]:
        """Strides of the whole."""
        result, step = [], 1
        for size in reversed(self.whole):
            result.append(step)
            step *= size
        return tuple(reversed(result))


def _match(
    samples: Samples,
    size: Sequence[int],
    stride: Sequence[int],
    other_size: Sequence[int],
    other_stride: Sequence[int],
) -> Samples:
    """The same samples in another view of one memory: a dimension of equal size and stride."""
    for dim, (length, step) in enumerate(zip(other_size, other_stride, strict=True)):
        if (length, step) == (size[samples.dim], stride[samples.dim]):
            return samples.at(dim)
    raise MixesSamples("an in-place write or read takes a part of the samples")


class PartWrite(Movement):
    """A tensor after a part of it was overwritten: operands are the old tensor and the part."""

    def __init__(self, call: Call, whole: Operand, part: Operand, region: Region) -> None:
        super().__init__(call, whole)
        self.region = region

        def place(where: Samples) -> Samples:
            return _match(where, region.size, region.stride, region.whole, region.strides())

        self.samples = (common([call.move(part.samples, place), whole.samples]),)
        if self.samples[0] is not None and (whole.is_weight or part.is_weight):
            raise MixesSamples("an in-place write joins a weight to values of the samples")

    def pull(self, s: Tensor, index: int = 0) -> Tensor:
        if index:
            return self.region.read(s).clone()
        whole = s.contiguous().clone()
        self.region.read(whole).zero_()
        return whole


class PartRead(Movement):
    """A view of a tensor that was written after the view was made."""

    def __init__(self, call: Call, whole: Operand, region: Region) -> None:
        def place(where: Samples) -> Samples:
            return _match(where, region.whole, region.strides(), region.size, region.stride)

        def pull(s: Tensor) -> Tensor:
            out = s.new_zeros(s.shape[0], *region.whole)
            region.read(out).copy_(s)
            return out

        super().__init__(call, whole, place, pull)


@register_rule("aten::copy")
class Overwrite(Movement):
    """out = source, broadcast to the shape of what it overwrites."""

    def __init__(self, call: Call, old: Operand, source: Operand, *args: Any) -> None:
        super().__init__(call, source)
        self.samples = (
            elementwise([(source.samples, source.shape)], call.out.shape)
            if source.samples is not None
            else None,
        )
        self.dtype = wide(source.tensor.dtype)

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        return sum_to_shape(s, self.shape).to(self.dtype) if index == 1 else None
