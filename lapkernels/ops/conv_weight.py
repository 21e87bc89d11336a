r"""The gradient of a layer's weight: its Jacobian times one column, summed over samples.

.. math:: D[o, i, k] = \sum_n \sum_t s_n[o, t] \, X_n[i, k, t]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.ops import serving
from lapkernels.ops.base.correlation import (
    ARGUMENTS,
    canonical,
    library_input,
    weight_like,
    weight_shape,
)
from lapkernels.ops.base.geometry import Geometry, check_rank
from lapkernels.ops.base.registration import kernel_for, register

_backward = torch.ops.aten.convolution_backward.default


def conv_weight(s: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    """D of the weight, of its shape, from ``s`` [N, O, *out] and ``x`` [N, I, *in].

    For Linear the tensors are [N, ..., O] and [N, ..., I].
    """
    check_rank("s", s.shape, geometry, 1)
    arguments = canonical(s.unsqueeze(0), x, geometry)
    small, large, kernel_size, *_, groups = arguments
    sizes = (small.shape[2], large.shape[2], kernel_size, groups)
    ours = not serving.conv_weight_by_library(*sizes)
    run = CONV_WEIGHT if ours and kernel_for("conv_weight", [small, large]) else weight_gradient
    return weight_like(run(*arguments), geometry)


def weight_gradient(
    small: Tensor,
    large: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """D by torch's library."""
    shape = weight_shape(small, large, kernel_size, groups)
    if small.numel() == 0 or large.numel() == 0:
        return small.new_zeros(shape) + 0 * (small.sum() + large.sum())
    taps = (kernel_size, stride, padding, dilation)
    entry, symmetric = library_input(large.squeeze(0), small.shape[3:], *taps)
    mask = [False, True, False]
    options = (stride, symmetric, dilation, False, [0] * len(kernel_size), groups, mask)
    weight = small.new_empty(shape)
    return _backward(small.squeeze(0), entry, weight, None, *options)[1]


def _shape(small: Tensor, large: Tensor, kernel_size: Sequence[int], *rest: int) -> tuple[int, ...]:
    return weight_shape(small, large, kernel_size, rest[-1])


CONV_WEIGHT = register("conv_weight", ARGUMENTS, reference=weight_gradient, shape=_shape)
