r"""The unfolded input of a layer (im2col), materialised.

.. math:: Z_n = W X_n, \qquad X_n \in R^{I K \times T}

It is K times the size of the input. The Kronecker factors have an op that never stores it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapkernels.ops.base.correlation import windows
from lapkernels.ops.base.geometry import Geometry, channels_first, pad_input


def unfolded(x: Tensor, geometry: Geometry) -> Tensor:
    """X of ``x`` [N, I, *in] as [N, groups, T, I / groups * K]."""
    x, geometry = pad_input(x, geometry)
    entry = channels_first(x, geometry, 1)
    size = tuple(entry.shape[2:])
    positions = size if geometry.is_linear else geometry.output_size(size)
    kernel = geometry.kernel_size or (1,)
    return patches(entry, positions, kernel, *geometry.arguments, geometry.transposed)


def patches(
    x: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
) -> Tensor:
    """X [N, groups, T, I / groups * K] of ``x`` [N, I, *in], T the number of output positions."""
    if transposed:
        x = _spread(x, stride)
        padding = [
            spread * (k - 1) - pad
            for spread, k, pad in zip(dilation, kernel_size, padding, strict=True)
        ]
        stride = [1] * len(kernel_size)
    view = windows(x, output_size, kernel_size, stride, padding, dilation)
    if transposed:
        view = view.flip([-1 - d for d in range(len(kernel_size))])
    dims = len(kernel_size)
    view = view.flatten(2 + dims).flatten(2, 1 + dims)  # [N, I, T, K]
    view = view.unflatten(1, (groups, x.shape[1] // groups)).transpose(2, 3)
    return view.flatten(3)


def _spread(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Zeros between the entries, which make a transposed convolution a plain one."""
    size = [max(0, (u - 1) * step + 1) for u, step in zip(x.shape[2:], stride, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *size)
    wide[(..., *[slice(None, None, step) for step in stride])] = x
    return wide
