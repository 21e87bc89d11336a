r"""Squared Jacobian columns weighted by a variance: the linearised predictive variance.

.. math:: var[n, v] = \sum_{o, i, k} \sigma^2[o, i, k] \, G_{n,v}[o, i, k]^2
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
from lapkernels.ops.base.matrix_products import outer_factors, squared_dot
from lapkernels.ops.base.registration import Computed, register
from lapkernels.ops.base.squared_backward import squared_backward


def jacobian_squared_dot(
    s: Tensor,
    x: Tensor,
    variance: Tensor,
    geometry: Geometry,
    *,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """Variance [N, V] of each column ``s`` [V, N, O, *out] under the weight's variance.

    With ``out`` the result is ``out <- decay * out + scale * var``: layers add up in place.
    """
    small, large, kernel_size, *rest = canonical(s, x, geometry)
    check_same("x", x, variance=variance)
    variance = variance.unsqueeze(-1) if geometry.is_linear else variance
    shape = weight_shape(small, large, kernel_size, geometry.groups)
    check_shape("variance", variance, shape)
    return _op(small, large, variance, kernel_size, *rest, out=out, decay=decay, scale=scale)


def jacobian_squared_dot_bias(s: Tensor, variance: Tensor, geometry: Geometry) -> Tensor:
    """The bias's share of the variance, [N, V]."""
    return (position_sums(s, geometry, variance).square() @ variance).T


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
        value = (g.square() * variance[channels]).flatten(2).sum(2).T
        found[samples.start] = found.get(samples.start, 0) + value
    return torch.cat(list(found.values()))


def _library(small: Tensor, large: Tensor, variance: Tensor, *rest: Any) -> Computed:
    factors = outer_factors(small, large, *rest)
    if factors is None:
        return None
    s, x = factors
    return partial(squared_dot, s, x, variance.reshape(s.shape[2], s.shape[3], x.shape[3]))


def _shape(small: Tensor, large: Tensor, *rest: object) -> tuple[int, ...]:
    return (small.shape[1], column_count(small, large))


def _backward(
    grad: Tensor,
    small: Tensor,
    large: Tensor,
    variance: Tensor,
    *geometry: object,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    grads = squared_backward(small, large, variance, grad, geometry, needs)
    return (*grads, None, None, None, None, None)


_op = register(
    "jacobian_squared_dot",
    ARGUMENTS.replace("Tensor large,", "Tensor large, Tensor variance,"),
    reference=_reference,
    shape=_shape,
    library=_library,
    backward=_backward,
)
