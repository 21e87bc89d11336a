r"""Squared-kernel convolution with respect to the weight: a diagonal M pushed onto the parameters.

.. math:: D[o, i, k] = \sum_n \sum_t m_n[o, t] \, X_n[i, k, t]^2
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from lapkernels.ops import serving
from lapkernels.ops.base.correlation import (
    ARGUMENTS,
    canonical,
    out_like,
    weight_like,
    weight_shape,
)
from lapkernels.ops.base.geometry import (
    Geometry,
    channels_first,
    check_rank,
    check_real,
    is_pointwise,
)
from lapkernels.ops.base.registration import Computed, register
from lapkernels.ops.conv_weight import weight_gradient


def squared_conv_weight(
    m: Tensor,
    x: Tensor,
    geometry: Geometry,
    *,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """D of the weight, of its shape, from ``m`` [N, O, *out] and ``x`` [N, I, *in].

    For Linear the tensors are [N, ..., O] and [N, ..., I].
    With ``out`` the result is ``out <- decay * out + scale * D``, in place.
    """
    check_rank("m", m.shape, geometry, 1)
    arguments = (*canonical(m.unsqueeze(0), x, geometry, name="m"), geometry.transposed)
    value = _op(*arguments, out=out_like(out, geometry), decay=decay, scale=scale)
    return weight_like(value, geometry) if out is None else out


def squared_conv_bias(m: Tensor, geometry: Geometry) -> Tensor:
    """D of the bias, [O]: ``m`` [N, O, *out] summed over samples and positions."""
    check_real("m", m)
    check_rank("m", m.shape, geometry, 1)
    return channels_first(m, geometry, 1).flatten(2).sum((0, 2))


def _reference(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    square_small: bool,
) -> Tensor:
    small, large = (small.square(), large) if square_small else (small, large.square())
    return weight_gradient(small, large, kernel_size, stride, padding, dilation, groups)


def _library(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    square_small: bool,
) -> Computed:
    if serving.matrix_product_by_library(is_pointwise(kernel_size, stride, padding, groups)):
        return partial(_pointwise, small, large, kernel_size, square_small)
    sizes = (small.shape[2], large.shape[2], kernel_size, groups)
    if serving.squared_convolution_by_library(small.is_cpu) or serving.conv_weight_by_library(
        *sizes
    ):
        taps = (kernel_size, stride, padding, dilation, groups, square_small)
        return partial(_reference, small, large, *taps)
    return None


def _pointwise(
    small: Tensor, large: Tensor, kernel_size: Sequence[int], square_small: bool
) -> Tensor:
    a, b = small[0].flatten(2), large[0].flatten(2)
    a, b = (a.square(), b) if square_small else (a, b.square())
    value = torch.einsum("nat,nbt->ab", a, b)
    return value.reshape(weight_shape(small, large, kernel_size, 1))


def _shape(small: Tensor, large: Tensor, kernel_size: Sequence[int], *rest: int) -> tuple[int, ...]:
    return weight_shape(small, large, kernel_size, rest[-2])


_op = register(
    "squared_conv_weight",
    ARGUMENTS + ", bool square_small",
    reference=_reference,
    shape=_shape,
    library=_library,
)
