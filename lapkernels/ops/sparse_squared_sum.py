r"""Sum of squared Jacobian columns that share their zeros, as behind ReLU and max-pooling.

.. math:: D[o, i, k] = \sum_{n, v} \Bigl( \sum_{t \in Z_{n,o}} S_{n,v}[o, t] \, X_n[i, k, t]
          \Bigr)^2, \qquad Z_{n,o} = \{t : S_{n,v}[o, t] \neq 0 \text{ for some } v\}

The value is that of ``jacobian_squared_sum`` for any columns; its cost is in proportion to the
nonzero entries. An entry that is zero in all columns adds nothing, even where X is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapkernels.ops.base.correlation import ARGUMENTS, canonical, squared_jacobian, weight_shape
from lapkernels.ops.base.geometry import Geometry
from lapkernels.ops.base.registration import register
from lapkernels.ops.base.squared_backward import squared_backward
from lapkernels.ops.base.zeros import check_plain


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
