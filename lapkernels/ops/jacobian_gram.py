r"""Inner products of a sample's Jacobian columns: the joint predictive covariance.

.. math:: C[n, v, v'] = \sum_{o, i, k} G_{n,v}[o, i, k] \, \sigma^2[o, i, k] \, G_{n,v'}[o, i, k]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops.base.correlation import (
    ARGUMENTS,
    canonical,
    column_count,
    jacobian_parts,
    position_sums,
    weight_shape,
)
from lapkernels.ops.base.geometry import Geometry, check_same, check_shape
from lapkernels.ops.base.matrix_products import gram, outer_factors
from lapkernels.ops.base.registration import Computed, register


def jacobian_gram(
    s: Tensor,
    x: Tensor,
    variance: Tensor,
    geometry: Geometry,
    *,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """Covariance [N, V, V] of the columns ``s`` [V, N, O, *out] under the weight's variance.

    With ``out`` the result is ``out <- decay * out + scale * C``: layers add up in place.
    """
    small, large, kernel_size, *rest = canonical(s, x, geometry)
    check_same("x", x, variance=variance)
    variance = variance.unsqueeze(-1) if geometry.is_linear else variance
    shape = weight_shape(small, large, kernel_size, geometry.groups)
    check_shape("variance", variance, shape)
    return _op(small, large, variance, kernel_size, *rest, out=out, decay=decay, scale=scale)


def jacobian_gram_bias(s: Tensor, variance: Tensor, geometry: Geometry) -> Tensor:
    """The bias's share of the covariance, [N, V, V]."""
    sums = position_sums(s, geometry, variance).transpose(0, 1)
    return (sums * variance) @ sums.mT


def _reference(
    small: Tensor,
    large: Tensor,
    variance: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    geometry = (kernel_size, stride, padding, dilation, groups)
    found: dict[int, Tensor] = {}
    for samples, channels, g in jacobian_parts(small, large, *geometry):
        part = g.flatten(2).transpose(0, 1)
        value = (part * variance[channels].flatten()) @ part.mT
        found[samples.start] = found.get(samples.start, 0) + value
    return torch.cat(list(found.values()))


def _library(small: Tensor, large: Tensor, variance: Tensor, *rest: Any) -> Computed:
    factors = outer_factors(small, large, *rest)
    if factors is None:
        return None
    s, x = factors
    return partial(gram, s, x, variance.reshape(s.shape[2], s.shape[3], x.shape[3]))


def _shape(small: Tensor, large: Tensor, *rest: object) -> tuple[int, ...]:
    columns = column_count(small, large)
    return (small.shape[1], columns, columns)


_op = register(
    "jacobian_gram",
    ARGUMENTS.replace("Tensor large,", "Tensor large, Tensor variance,"),
    reference=_reference,
    shape=_shape,
    library=_library,
)
