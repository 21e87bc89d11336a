r"""Sum of squared per-sample Jacobian columns: the exact diagonal of a layer's GGN.

.. math:: D[o, i, k] = \sum_{n, v} G_{n,v}[o, i, k]^2, \qquad
          G_{n,v}[o, i, k] = \sum_t S_{n,v}[o, t] \, X_n[i, k, t]

with :math:`S_{n,v}` column v of the output Hessian's factor, back-propagated to the layer's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lapkernels.ops.base.correlation import (
    ARGUMENTS,
    canonical,
    out_like,
    position_sums,
    squared_jacobian,
    weight_like,
    weight_shape,
)
from lapkernels.ops.base.geometry import Geometry, is_pointwise
from lapkernels.ops.base.matrix_products import (
    outer_factors,
    squared_sum,
    squared_sum_of_few,
    takes_few,
)
from lapkernels.ops.base.registration import Computed, register
from lapkernels.ops.base.squared_backward import squared_backward


def jacobian_squared_sum(
    s: Tensor,
    x: Tensor,
    geometry: Geometry,
    *,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """D of the weight, of its shape.

    ``s`` is [V, N, O, *out] and ``x`` [N, I, *in] ([V, N, ..., O] and [N, ..., I] for Linear).
    With ``out`` the result is ``out <- decay * out + scale * D``, in place.
    """
    value = _op(*canonical(s, x, geometry), out=out_like(out, geometry), decay=decay, scale=scale)
    return weight_like(value, geometry) if out is None else out


def jacobian_squared_sum_bias(s: Tensor, geometry: Geometry) -> Tensor:
    """D of the bias, [O]: sum over samples and columns of (sum_t S)²."""
    return position_sums(s, geometry).square().sum((0, 1))


def _reference(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    return squared_jacobian(small, large, kernel_size, stride, padding, dilation, groups)


def _library(small: Tensor, large: Tensor, kernel_size: Sequence[int], *rest: Any) -> Computed:
    shape = weight_shape(small, large, kernel_size, rest[-1])
    factors = outer_factors(small, large, kernel_size, *rest)
    if factors is not None:
        return lambda: squared_sum(*factors).reshape(shape)
    stride, padding, _, groups = rest
    if small.dim() > 4 or not is_pointwise(kernel_size, stride, padding, groups):
        return None
    if not takes_few(small, large):
        return None
    return lambda: squared_sum_of_few(small, large).reshape(shape)


def _shape(small: Tensor, large: Tensor, kernel_size: Sequence[int], *rest: int) -> tuple[int, ...]:
    return weight_shape(small, large, kernel_size, rest[-1])


def _backward(
    grad: Tensor, small: Tensor, large: Tensor, *geometry: object, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    small_grad, large_grad, _ = squared_backward(small, large, grad, None, geometry, needs)
    return (small_grad, large_grad, None, None, None, None, None)


_op = register(
    "jacobian_squared_sum",
    ARGUMENTS,
    reference=_reference,
    shape=_shape,
    backward=_backward,
    library=_library,
)
