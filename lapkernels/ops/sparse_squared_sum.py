r"""Sum of squared Jacobian columns that share their zeros, as behind ReLU and max-pooling.

.. math:: D[o, i, k] = \sum_{n, v} \Bigl( \sum_{t \in Z_{n,o}} S_{n,v}[o, t] \, X_n[i, k, t]
          \Bigr)^2, \qquad Z_{n,o} = \{t : S_{n,v}[o, t] \neq 0 \text{ for some } v\}

The value is that of ``jacobian_squared_sum`` for any columns; its cost is in proportion to the
nonzero entries. An entry that is zero in all columns adds nothing, even where X is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.kernels import NATIVE, current_backend
from lapkernels.kernels.selector import DTYPES
from lapkernels.ops import serving
from lapkernels.ops.base.correlation import ARGUMENTS, canonical, squared_jacobian, weight_shape
from lapkernels.ops.base.geometry import Geometry
from lapkernels.ops.base.registration import Route, register, route
from lapkernels.ops.base.squared_backward import squared_backward

# Entries of a column that are looked at for zeros.
LOOKED_AT = 4096


def sparse_squared_sum(
    s: Tensor,
    x: Tensor,
    geometry: Geometry,
    *,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """D of the weight [O, I, *k] of a convolution in one group, not transposed.

    ``s`` is [V, N, O, *out] and ``x`` [N, I, *in].
    With ``out`` the result is ``out <- decay * out + scale * D``, in place.
    """
    check_plain(geometry)
    return _op(*canonical(s, x, geometry), out=out, decay=decay, scale=scale)


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


def _shape(small: Tensor, large: Tensor, kernel_size: Sequence[int], *rest: int) -> tuple[int, ...]:
    return weight_shape(small, large, kernel_size, rest[-1])


def _backward(
    grad: Tensor, small: Tensor, large: Tensor, *geometry: object, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    small_grad, large_grad, _ = squared_backward(small, large, grad, None, geometry, needs)
    return (small_grad, large_grad, None, None, None, None, None)


_op = register(
    "sparse_squared_sum", ARGUMENTS, reference=_reference, shape=_shape, backward=_backward
)


def is_plain(geometry: Geometry) -> bool:
    """Whether a layer is a convolution in one group, not transposed."""
    return not (geometry.is_linear or geometry.transposed) and geometry.groups == 1


def check_plain(geometry: Geometry) -> None:
    """Raise unless the layer is a convolution in one group, not transposed."""
    if not is_plain(geometry):
        raise ValueError(
            "a convolution with groups=1 that is not transposed is needed, not "
            f"kernel_size={geometry.kernel_size}, groups={geometry.groups}, "
            f"transposed={geometry.transposed}"
        )


def can_skip_zeros(s: Tensor, geometry: Geometry) -> bool:
    """Whether an op that skips shared zeros of ``s`` [V, N, O, *out] may serve this layer."""
    return not (
        not is_plain(geometry)
        or len(geometry.kernel_size) != 2
        or geometry.padding_mode != "zeros"
        or NATIVE.path is None
        or current_backend() != "auto"
        or not s.is_cpu
        or s.dtype not in DTYPES
        or s.numel() == 0
        or s.shape[3:].numel() == 1  # an outer product: torch's GEMM is faster
        or route([s]) is not Route.DIRECT
    )


def mostly_zero(s: Tensor, geometry: Geometry) -> bool:
    """Whether an op that skips shared zeros of ``s`` [V, N, O, *out] should serve this layer.

    Columns behind ReLU and max-pooling share their zeros, so some entries of the first one show it.
    Only speed depends on it: the ops are exact for all columns.
    """
    if not serving.zeros_looked_for(s.numel()) or not can_skip_zeros(s, geometry):
        return False
    # An odd step samples all image columns.
    some = s[0].flatten()[:: s[0].numel() // LOOKED_AT | 1]
    return serving.zeros_skipped(int(torch.count_nonzero(some)), some.numel())


def skips_zeros(s: Tensor, geometry: Geometry) -> bool:
    """Whether zeros that columns ``s`` [V, N, O, *out] share are skipped in a layer."""
    wanted = serving.choice("sparse")
    if wanted is None:
        return mostly_zero(s, geometry)
    return wanted and can_skip_zeros(s, geometry)
