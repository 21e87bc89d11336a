r"""Squared-kernel convolution with respect to the input: a diagonal M pushed through a layer.

.. math:: m_{in}[i, u] = \varphi'(z[i, u])^2 \sum_{o, t} m_{out}[o, t]
          \Big(\sum_{k : (t, k) \to u} W[o, i, k]\Big)^2

The inner sum has several terms only where two taps read one input because of the padding mode.
The factor with :math:`\varphi'` is the activation that made the layer's input, if given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lapkernels.kernels import compiled
from lapkernels.ops import serving
from lapkernels.ops.base.geometry import (
    Geometry,
    channel_count,
    channels_first,
    check_groups,
    check_rank,
    check_real,
    check_same,
    check_shape,
    is_pointwise,
    once_per_size,
    spatial_size,
)
from lapkernels.ops.base.padding import fold_padding
from lapkernels.ops.base.registration import Computed, accumulate, check_out, register
from lapkernels.ops.conv_input import CONV_INPUT
from lapkernels.ops.squared_derivative import check_activation, derivative_squared


def squared_conv_input(
    m: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    geometry: Geometry,
    *,
    z: Tensor | None = None,
    activation: str = "identity",
    slope: float = 0.0,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """m at the layer's input, [N, I, *in], from ``m`` [N, O, *out] and the layer's ``weight``.

    ``input_size`` is the spatial size of the input (its positions, for Linear). With an
    ``activation`` the result is multiplied by its squared derivative at ``z`` (of the input's
    shape): see :func:`lapkernels.ops.squared_derivative`.
    With ``out`` the result is ``out <- decay * out + scale * m``, in place.
    """
    size = tuple(input_size)
    check_activation(activation)
    check_real("m", m)
    check_same("m", m, weight=weight, z=z)
    shape = _input_shape(m.shape, weight.shape, size, geometry)
    if (activation != "identity") != (z is not None):
        raise ValueError("z and an activation other than 'identity' go together")
    if z is not None:
        check_shape("z", z, shape)
    if out is not None:
        check_out(out, shape, m)
    if geometry.padding_mode != "zeros":
        value = fold_padding(m, weight, size, geometry, _op)
        if z is not None:
            value = value * derivative_squared(z, activation, slope)
        return value * scale if out is None else accumulate(out, value, decay, scale)
    kernel = weight.unsqueeze(-1) if geometry.is_linear else weight
    flat = [m.shape[1:-1].numel()] if geometry.is_linear else list(size)
    z = None if z is None else channels_first(z, geometry, 1)
    entry = channels_first(m, geometry, 1)
    arguments = (
        entry,
        kernel,
        flat,
        *geometry.arguments,
        geometry.transposed,
        z,
        activation,
        slope,
    )
    if not geometry.is_linear:
        return _op(*arguments, out=out, decay=decay, scale=scale)
    # Only in a contiguous buffer can positions of several dimensions be one.
    if out is not None and (out.dim() <= 3 or out.is_contiguous()):
        _op(*arguments, out=channels_first(out, geometry, 1), decay=decay, scale=scale)
        return out
    value = _op(*arguments).transpose(1, 2).reshape(shape)
    return value * scale if out is None else accumulate(out, value, decay, scale)


@once_per_size
def _input_shape(
    m: torch.Size, weight: torch.Size, size: tuple[int, ...], geometry: Geometry
) -> tuple[int, ...]:
    """Shape of the layer's input, after checks that ``m`` and ``weight`` belong to it."""
    check_rank("m", m, geometry, 1)
    if len(weight) < 2 or weight[2:] != geometry.kernel_size:
        raise ValueError(
            f"weight has shape {tuple(weight)}: "
            f"(channels, channels / groups, *{geometry.kernel_size}) is needed"
        )
    check_groups(weight[0], "weight", geometry.groups)
    geometry.check_pair(size, spatial_size(m, geometry, 1))
    channels = weight[1] * geometry.groups
    o, i = (channels, weight[0]) if geometry.transposed else (weight[0], channels)
    if channel_count(m, geometry, 1) != o:
        raise ValueError(f"m has shape {tuple(m)}, but the weight makes {o} channels")
    return (m[0], *size, i) if geometry.is_linear else (m[0], i, *size)


def _reference(
    m: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    z: Tensor | None,
    activation: str,
    slope: float,
) -> Tensor:
    taps = (stride, padding, dilation, groups, transposed)
    value = CONV_INPUT.reference(m, weight.square(), input_size, *taps)
    return value if z is None else value * derivative_squared(z, activation, slope)


def _library(
    m: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    z: Tensor | None,
    activation: str,
    slope: float,
) -> Computed:
    sizes = (weight.shape, stride, groups, transposed, weight.dtype)
    channels = weight.shape[0] // groups if transposed else weight.shape[1]
    if serving.matrix_product_by_library(is_pointwise(weight.shape[2:], stride, padding, groups)):
        value = partial(_pointwise, m, weight, input_size, transposed)
    elif (
        serving.squared_convolution_by_library(m.is_cpu)
        or serving.squared_conv_input_by_library(*sizes)
        or weight.dtype == torch.float32
        and serving.short_rows_by_library(channels, input_size[-1])
    ):
        taps = (input_size, stride, padding, dilation, groups, transposed)
        value = partial(_convolution, m, weight, *taps)
    else:
        return None
    return value if z is None else partial(_times_slope, value, m, z, activation, slope)


def _convolution(m: Tensor, weight: Tensor, *taps: Any) -> Tensor:
    return CONV_INPUT.reference(m, weight.square(), *taps)


def _pointwise(m: Tensor, weight: Tensor, size: Sequence[int], transposed: bool) -> Tensor:
    square = weight.flatten(1).square()
    rows = m.flatten(2).mT @ (square.mT if transposed else square)
    return rows.mT.reshape(m.shape[0], rows.shape[2], *size)


def _times_slope(
    compute: Callable[[], Tensor], m: Tensor, z: Tensor, activation: str, slope: float
) -> Tensor:
    value, kernel = compute(), compiled("squared_derivative", m, z)
    if kernel is None:
        return value.mul_(derivative_squared(z, activation, slope))
    kernel(value, 0.0, 1.0, value, z, activation, slope)
    return value


def _shape(m: Tensor, weight: Tensor, *taps: Any) -> Sequence[int]:
    return CONV_INPUT.shape(m, weight, *taps[:6])


_op = register(
    "squared_conv_input",
    "Tensor m, Tensor weight, int[] input_size, int[] stride, int[] padding, int[] dilation, "
    "int groups, bool transposed, Tensor? z, str activation, float slope",
    reference=_reference,
    shape=_shape,
    library=_library,
)
