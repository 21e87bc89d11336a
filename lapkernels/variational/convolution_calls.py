"""Reading calls of torch's functional convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops import Geometry

# The number of spatial dimensions, and whether it is transposed.
CONVOLUTIONS: Mapping[Any, tuple[int, bool]] = {
    torch.conv1d: (1, False),
    torch.conv2d: (2, False),
    torch.conv3d: (3, False),
    torch.conv_transpose1d: (1, True),
    torch.conv_transpose2d: (2, True),
    torch.conv_transpose3d: (3, True),
}


def convolution_geometry(
    func: Any,
    weight: Tensor,
    stride: Any = 1,
    padding: Any = 0,
    *rest: Any,
    **named: Any,
) -> Geometry:
    """The geometry of a call ``func(x, weight, bias, stride, padding, ...)``."""
    dims, transposed = CONVOLUTIONS[func]
    order = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
    options = dict(zip(order, rest, strict=False)) | named
    for name, value in {"stride": stride, "padding": padding, **options}.items():
        options[name] = tuple(value) if isinstance(value, list) else value
    return Geometry.conv(tuple(weight.shape[2:]), dims=dims, transposed=transposed, **options)
