r"""Columns that share their zeros, as behind ReLU and max-pooling, pulled back to a layer's input.

.. math:: \mathrm{out}[v, n, i, u] = \sum_{o,k,t} W[o, i, k] \, s[v, n, o, t]
          \quad\text{over}\quad t \cdot \mathrm{stride} + k \cdot \mathrm{dilation}
          - \mathrm{padding} = u

The value is that of ``conv_input`` for any columns; its cost is in proportion to the entries
(n, o, t) that are not zero in all columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapkernels.ops.base.geometry import Geometry, check_rank, check_real, check_same, check_shape
from lapkernels.ops.base.registration import register
from lapkernels.ops.conv_input import transpose
from lapkernels.ops.sparse_squared_sum import check_plain


def sparse_conv_input(
    s: Tensor, weight: Tensor, input_size: Sequence[int], geometry: Geometry
) -> Tensor:
    """Columns [V, N, I, *input_size] of a convolution in one group from ``s`` [V, N, O, *out].

    ``weight`` is [O, I, *k]; the layer is not transposed and pads with zeros.
    """
    check_plain(geometry)
    if geometry.padding_mode != "zeros":
        raise ValueError(f"padding_mode={geometry.padding_mode!r} must be 'zeros'")
    check_real("s", s)
    check_rank("s", s.shape, geometry, 2)
    check_rank("weight", weight.shape, geometry, 1)
    check_same("s", s, weight=weight)
    check_shape("weight", weight, (s.shape[2], weight.shape[1], *geometry.kernel_size))
    geometry.check_pair(tuple(input_size), tuple(s.shape[3:]))
    stride, padding, dilation, _ = geometry.arguments
    return _op(s, weight, list(input_size), stride, padding, dilation)


def _reference(
    s: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    shape = _shape(s, weight, input_size)
    if 0 in (*s.shape, *shape):
        return s.new_zeros(shape) + 0 * (s.sum() + weight.sum())
    value = transpose(s.flatten(0, 1), weight, input_size, stride, padding, dilation, 1)
    return value.unflatten(0, s.shape[:2])


def _shape(
    s: Tensor, weight: Tensor, input_size: Sequence[int], *rest: Sequence[int]
) -> tuple[int, ...]:
    return (*s.shape[:2], weight.shape[1], *input_size)


_op = register(
    "sparse_conv_input",
    "Tensor s, Tensor weight, int[] input_size, int[] stride, int[] padding, int[] dilation",
    reference=_reference,
    shape=_shape,
)
