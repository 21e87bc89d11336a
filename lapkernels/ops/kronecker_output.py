r"""Kronecker factor of a layer's output: second moments of the back-propagated columns.

expand: :math:`B = \sum_{n,v} \sum_t s_{n,v,t} s_{n,v,t}^T`, reduce:
:math:`B = \sum_{n,v} \bar s_{n,v} \bar s_{n,v}^T` with :math:`\bar s_{n,v} = \sum_t s_{n,v,t}`,
one factor a group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapkernels.ops.base.geometry import (
    Geometry,
    channel_count,
    channels_first,
    check_groups,
    check_rank,
    check_real,
    once_per_size,
)
from lapkernels.ops.base.registration import Computed, register
from lapkernels.ops.kronecker_input import moments_by_library


def kronecker_output(
    s: Tensor,
    geometry: Geometry,
    *,
    reduce: bool = False,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """B [groups, O / groups, O / groups] of ``s`` [V, N, O, *out] ([V, N, ..., O] for Linear).

    With ``out`` the result is ``out <- decay * out + scale * B``, in place.
    """
    check_real("s", s)
    _check_columns(s.shape, geometry)
    entry = channels_first(s, geometry, 2)
    return _op(entry, geometry.groups, reduce, out=out, decay=decay, scale=scale)


@once_per_size
def _check_columns(s: torch.Size, geometry: Geometry) -> None:
    check_rank("s", s, geometry, 2)
    check_groups(channel_count(s, geometry, 2), "s", geometry.groups)


def _reference(s: Tensor, groups: int, reduce: bool) -> Tensor:
    rows = s.unflatten(2, (groups, s.shape[2] // groups)).flatten(4)
    rows = rows.sum(4, keepdim=True) if reduce else rows
    return torch.einsum("vngat,vngbt->gab", rows, rows)


def _library(s: Tensor, groups: int, reduce: bool) -> Computed:
    if groups > 1 or (reduce and s.shape[3:].numel() > 1):
        return None
    return moments_by_library(s.flatten(0, 1).flatten(2))


def _shape(s: Tensor, groups: int, reduce: bool) -> tuple[int, ...]:
    return (groups, s.shape[2] // groups, s.shape[2] // groups)


_op = register(
    "kronecker_output",
    "Tensor s, int groups, bool reduce",
    reference=_reference,
    shape=_shape,
    library=_library,
)
