r"""Ops on whole parameter lists, in one launch for all tensors of a list.

A table holds, for each block of at most `_BLOCK` entries, its address in each list and its length;
a program takes one row. A sum has one partial sum a block, and these are added in order.

    gaussian_kl            \frac12 \sum [(\sigma^2 + \mu^2) / s^2 - 1 + \log (s^2 / \sigma^2)]
    squared_gradient_sum   \sum \sigma^2 g^2
    precision_update       h <- \rho h + c d
    sample_from_precision  e <- \mu + c e / \sqrt{h + \lambda}
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton.launch import TYPES, Kernel, Tile
from lapkernels.kernels.triton.operands import sum_dtype
from lapkernels.kernels.triton.sums import add_parts, fp64, scalar

# Entries of one row of the table.
_BLOCK = 1 << 14


@triton.jit
def _address(table, row, width, list_index, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    address = tl.load(table + row * width + list_index)
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address.to(tl.pointer_type(TYPE))  # pyright: ignore[reportArgumentType]


@triton.jit
def list_kernel(
    table,
    parts,
    first_scalar: fp64,
    second_scalar: fp64,
    OP: tl.constexpr,
    KEEP: tl.constexpr,
    ALIGNED: tl.constexpr,
    TYPE: tl.constexpr,
    SUM: tl.constexpr,
    WIDTH: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """Grid: rows of the table, [addresses in each list, length]. In-place ops write the first."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(table + row * WIDTH + WIDTH - 1)
    a = _address(table, row, WIDTH, 0, TYPE, ALIGNED)
    b = _address(table, row, WIDTH, 1, TYPE, ALIGNED)
    p = scalar(first_scalar, SUM)
    q = scalar(second_scalar, SUM)
    total = tl.zeros((ENTRIES,), SUM)
    for start in range(0, length, ENTRIES):
        entry = start + tl.arange(0, ENTRIES)
        inside = entry < length
        x = tl.load(a + entry, mask=inside & (KEEP or OP != "precision_update"), other=0.0).to(SUM)
        y = tl.load(b + entry, mask=inside, other=0.0).to(SUM)
        if OP == "gaussian_kl":
            # p is 1 / s² and q is log s² - 1.
            term = 0.5 * ((tl.exp(2.0 * y) + x * x) * p - 2.0 * y + q)
            total += tl.where(inside, term, 0.0)
        elif OP == "squared_gradient_sum":
            total += tl.where(inside, tl.exp(2.0 * y) * x * x, 0.0)
        elif OP == "precision_update":
            value = y * q
            if KEEP:
                value += x * p
            tl.store(a + entry, value, mask=inside)
        else:
            c = _address(table, row, WIDTH, 2, TYPE, ALIGNED)
            h = tl.load(c + entry, mask=inside, other=1.0).to(SUM)
            tl.store(a + entry, y + q * x / tl.sqrt(h + p), mask=inside)
    if OP == "gaussian_kl" or OP == "squared_gradient_sum":
        tl.store(parts + row, tl.sum(total, 0))


LIST = Kernel(
    list_kernel,
    key=(),
    nvidia=(Tile({"ENTRIES": 1024}, 4, 1),),
    amd=(Tile({"ENTRIES": 1024}, 4, 1),),
    interpreter={"ENTRIES": _BLOCK},
)


def _launch(
    op: str, first: float, second: float, lists: Sequence[Sequence[Tensor]], keep: bool = True
) -> Tensor:
    """Runs `op` over lists of dense tensors, and returns the sums of all blocks, if it has any."""
    like = lists[0][0]
    rows = _table(lists)
    parts = torch.empty(len(rows), 1, dtype=sum_dtype(like.dtype), device=like.device)
    LIST.launch(
        lambda constants: (len(rows),),
        table=rows,
        parts=parts,
        first_scalar=first,
        second_scalar=second,
        OP=op,
        KEEP=keep,
        ALIGNED=all(t.data_ptr() % 16 == 0 for entries in lists for t in entries),
        TYPE=TYPES[like.dtype],
        SUM=TYPES[parts.dtype],
        WIDTH=len(lists) + 1,
    )
    return parts


# Tables on devices, by what they are made of: optimisers pass the same lists at each step.
_tables: OrderedDict[Hashable, Tensor] = OrderedDict()
_KEPT = 32
# What graphs that were captured copy from.
_captured: list[Tensor] = []


def _table(lists: Sequence[Sequence[Tensor]]) -> Tensor:
    """Rows [address in each list, length], one for each block of entries, on the lists' device.

    The copy from pinned memory doesn't wait for the device, and may be captured in a CUDA graph.
    """
    like = lists[0][0]
    sizes = tuple([entry.numel() for entry in lists[0]])
    addresses = tuple([tuple([entry.data_ptr() for entry in entries]) for entries in lists])
    if not like.is_cuda:
        return torch.from_numpy(_rows(addresses, sizes, like.element_size()))
    capturing = torch.cuda.is_current_stream_capturing()
    stream = torch.cuda.current_stream(like.device).cuda_stream
    key = (like.device, stream, like.element_size(), sizes, addresses)
    found = None if capturing else _tables.get(key)
    if found is None:
        rows = torch.from_numpy(_rows(addresses, sizes, like.element_size())).pin_memory()
        found = rows.to(like.device, non_blocking=True)
        if capturing:
            _captured.append(rows)
        else:
            _tables[key] = found
            if len(_tables) > _KEPT:
                _tables.popitem(last=False)
    return found


def _rows(
    addresses: Sequence[Sequence[int]], sizes: Sequence[int], element: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    counts = np.array(sizes, dtype=np.int64)
    blocks = -(-counts // _BLOCK)
    first = _BLOCK * (np.arange(blocks.sum()) - np.repeat(blocks.cumsum() - blocks, blocks))
    starts = [np.repeat(np.array(column, dtype=np.int64), blocks) for column in addresses]
    length = np.minimum(np.repeat(counts, blocks) - first, _BLOCK)
    return np.stack([*(start + first * element for start in starts), length], 1)


def _dense(entries: Sequence[Tensor]) -> list[Tensor]:
    return [entry.contiguous() for entry in entries]


def gaussian_kl(
    out: Tensor,
    decay: float,
    scale: float,
    mean: Sequence[Tensor],
    log_sigma: Sequence[Tensor],
    prior_sigma: float,
) -> None:
    """out <- decay * out + scale * KL; arguments as the registered op's."""
    constants = 1 / prior_sigma**2, 2 * math.log(prior_sigma) - 1
    add_parts(
        _launch("gaussian_kl", *constants, (_dense(mean), _dense(log_sigma))), out, decay, scale
    )


def squared_gradient_sum(
    out: Tensor, decay: float, scale: float, gradient: Sequence[Tensor], log_sigma: Sequence[Tensor]
) -> None:
    """out <- decay * out + scale * sum; arguments as the registered op's."""
    lists = (_dense(gradient), _dense(log_sigma))
    add_parts(_launch("squared_gradient_sum", 0.0, 0.0, lists), out, decay, scale)


def precision_update(
    precision: Sequence[Tensor], diagonal: Sequence[Tensor], decay: float, scale: float
) -> None:
    """h <- decay * h + scale * d, in place."""
    _in_place("precision_update", precision, (diagonal,), decay, scale, keep=decay != 0.0)


def sample_from_precision(
    noise: Sequence[Tensor],
    mean: Sequence[Tensor],
    precision: Sequence[Tensor],
    prior_precision: float,
    scale: float,
) -> None:
    """e <- mu + scale * e / sqrt(h + prior_precision), in place."""
    _in_place("sample_from_precision", noise, (mean, precision), prior_precision, scale)


def _in_place(
    op: str,
    target: Sequence[Tensor],
    others: Sequence[Sequence[Tensor]],
    first: float,
    second: float,
    keep: bool = True,
) -> None:
    for index, entry in enumerate(target):
        if any(s == 0 for s, n in zip(entry.stride(), entry.shape, strict=True) if n > 1):
            raise RuntimeError(f"{op}: entry {index} of the first list overlaps itself in memory")
    dense = _dense(target)
    _launch(op, first, second, (dense, *map(_dense, others)), keep)
    for entry, copy in zip(target, dense, strict=True):
        if copy is not entry:
            entry.copy_(copy)
