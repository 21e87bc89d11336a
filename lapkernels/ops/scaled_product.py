r"""Columns that are one matrix for all samples up to a factor, times a weight.

.. math:: out[v, n, j] = \sum_f rows[v, f] \, factor[n, f] \, W[f, j]

Shared columns have this form behind an activation; their V N F entries are never computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.ops import serving
from lapkernels.ops.base.chunks import row_chunks
from lapkernels.ops.base.geometry import check_same, check_shape
from lapkernels.ops.base.registration import register


def scaled_product(
    rows: Tensor,
    factor: Tensor,
    weight: Tensor,
    *,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """[V, N, J] from ``rows`` [V, F], ``factor`` [N, F] and ``weight`` [F, J].

    With ``out`` the result is ``out <- decay * out + scale * value``, in place.
    """
    check_same("rows", rows, factor=factor, weight=weight)
    for name, tensor in (("rows", rows), ("factor", factor), ("weight", weight)):
        if tensor.dim() != 2:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: two dimensions are needed")
    check_shape("factor", factor, (factor.shape[0], rows.shape[1]))
    check_shape("weight", weight, (rows.shape[1], weight.shape[1]))
    return SCALED_PRODUCT(rows, factor, weight, out=out, decay=decay, scale=scale)


def banded_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows [V, F] @ matrix [F, M], skipping the zeros beside a band of the rows.

    Unit columns have such zeros, and the triangular factor of a QR decomposition.
    """
    # Looking for them would wait for a device.
    bands = _bands(rows) if rows.is_cpu and len(rows) > serving.BLOCK else []
    kept = sum(last - first for first, last in bands)
    if not serving.band_multiplied(kept, len(bands) * rows.shape[1]):
        return rows @ matrix
    parts = zip(rows.split(serving.BLOCK), bands, strict=True)
    return torch.cat([part[:, first:last] @ matrix[first:last] for part, (first, last) in parts])


def _bands(rows: Tensor) -> list[tuple[int, int]]:
    """First and last + 1 of the features that are not zero in each block of rows."""
    sizes = rows.detach().abs()
    blocks = [part.amax(0).nonzero().flatten() for part in sizes.split(serving.BLOCK)]
    return [(int(live[0]), int(live[-1]) + 1) if len(live) else (0, 0) for live in blocks]


def _reference(rows: Tensor, factor: Tensor, weight: Tensor) -> Tensor:
    parts = [
        banded_product(rows, (factor[samples].mT.unsqueeze(2) * weight.unsqueeze(1)).flatten(1))
        for samples in row_chunks(len(factor), weight.numel())
    ]
    both = torch.cat(parts, 1) if parts else rows.new_zeros(len(rows), 0)
    return both.reshape(_shape(rows, factor, weight))


def _shape(rows: Tensor, factor: Tensor, weight: Tensor) -> Sequence[int]:
    return (rows.shape[0], factor.shape[0], weight.shape[1])


SCALED_PRODUCT = register(
    "scaled_product",
    "Tensor rows, Tensor factor, Tensor weight",
    reference=_reference,
    shape=_shape,
)
