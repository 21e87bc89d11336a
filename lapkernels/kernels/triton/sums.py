"""The second pass of split sums: out <- decay * out + scale * (partial sums added in order)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton.launch import TYPES, Kernel, Tile, power_of_two
from lapkernels.kernels.triton.operands import index_type

# Triton reads the annotation's name: a plain float would be float32.
if TYPE_CHECKING:
    fp64 = float
else:
    fp64 = tl.constexpr("fp64")


@triton.jit
def scalar(value, TYPE: tl.constexpr):
    """A scalar argument in the dtype of the computation."""
    return tl.full((), value, TYPE)


@triton.jit
def accumulate(pointers, value, decay, scale, inside, KEEP: tl.constexpr, SUM: tl.constexpr):
    """Store decay * old + scale * value; old content is read only if it is kept."""
    value = value * scalar(scale, SUM)
    if KEEP:
        value += tl.load(pointers, mask=inside, other=0.0).to(SUM) * scalar(decay, SUM)
    tl.store(pointers, value, mask=inside)


@triton.jit
def add_parts_kernel(
    parts,
    out,
    decay: fp64,
    scale: fp64,
    count,
    entries,
    KEEP: tl.constexpr,
    SUM: tl.constexpr,
    INDEX: tl.constexpr,
    PARTS: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """Grid: blocks of entries."""
    entry = tl.program_id(0).to(INDEX) * ENTRIES + tl.arange(0, ENTRIES).to(INDEX)
    inside = entry < entries
    total = tl.zeros((ENTRIES,), SUM)
    for first in range(0, count, PARTS):
        part = first + tl.arange(0, PARTS).to(INDEX)
        offset = part[:, None] * entries + entry[None, :]
        there = (part < count)[:, None] & inside[None, :]
        total += tl.sum(tl.load(parts + offset, mask=there, other=0.0), 0)
    accumulate(out + entry, total, decay, scale, inside, KEEP, SUM)


ADD_PARTS = Kernel(
    add_parts_kernel,
    key=(),
    nvidia=(Tile({}, 4, 1),),
    amd=(Tile({}, 4, 1),),
    interpreter={},
)


def add_parts(parts: Tensor, out: Tensor, decay: float, scale: float) -> None:
    """Add `parts` [count, entries] into `out`, which holds as many entries in the same order."""
    count, entries = parts.shape
    direct = out.is_contiguous()
    target = out if direct else parts.new_empty(out.shape)
    block = power_of_two(entries, 1, 1024)
    ADD_PARTS.launch(
        lambda constants: (triton.cdiv(entries, constants["ENTRIES"]),),
        parts=parts,
        out=target,
        decay=decay if direct else 0.0,
        scale=scale if direct else 1.0,
        count=count,
        entries=entries,
        KEEP=direct and decay != 0.0,
        SUM=TYPES[parts.dtype],
        INDEX=index_type(parts),
        PARTS=power_of_two(count, 1, 2048 // block),
        ENTRIES=block,
    )
    if not direct:
        kept = out * decay if decay != 0.0 else 0.0
        out.copy_(kept + target * scale)
