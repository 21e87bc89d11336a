"""The transpose of a layer: columns at its output pulled back to its input, by torch's library.

.. math:: s_{in} = W^T s_{out}
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops._correlation import library_input
from lapkernels.ops.geometry import Geometry

CONV = (F.conv1d, F.conv2d, F.conv3d)
CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def conv_input(s: Tensor, weight: Tensor, input_size: Sequence[int], geometry: Geometry) -> Tensor:
    """Columns [B, I, *input_size] of a convolution (zero padding) from ``s`` [B, O, *out]."""
    stride, padding, dilation, groups = geometry.arguments
    if geometry.transposed:
        kernel = geometry.kernel_size
        entry, symmetric = library_input(s, input_size, kernel, stride, padding, dilation)
        conv = CONV[len(kernel) - 1]
        return conv(entry, weight, None, stride, symmetric, dilation, groups)
    return transpose(s, weight, input_size, stride, padding, dilation, groups)


def transpose(
    s: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Transposed convolution whose result has ``input_size``, whatever the padding after it was."""
    dims = len(input_size)
    extra = [
        size - ((t - 1) * step - 2 * pad + spread * (k - 1) + 1)
        for size, t, step, pad, spread, k in zip(
            input_size, s.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True
        )
    ]
    conv = CONV_TRANSPOSE[dims - 1]
    if all(0 <= e < max(pair) for e, *pair in zip(extra, stride, dilation, strict=True)):
        return conv(s, weight, None, stride, padding, extra, groups, dilation)
    full = conv(s, weight, None, stride, 0, 0, groups, dilation)
    sides = [
        side
        for d in reversed(range(dims))
        for side in (-padding[d], input_size[d] + padding[d] - full.shape[2 + d])
    ]
    return F.pad(full, sides)
