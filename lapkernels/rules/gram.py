r"""Sums of squared Jacobian columns through the Gram matrices of positions.

.. math:: \sum_{n,v} G_{n,v}[o, i]^2 = \sum_n \sum_{t,t'} \Bigl( \sum_v S_{n,v}[o, t] S_{n,v}[o, t']
          \Bigr) X_n[i, t] \, X_n[i, t']

With T positions the columns enter by T² products for each output feature and no longer meet the
inputs: less work than V Jacobians where T is smaller than both V and the number of inputs. T = 1 is
the outer product, sum_v S² times X².
"""

from __future__ import annotations

from torch import Tensor

from lapkernels import ops
from lapkernels.ops import Geometry
from lapkernels.ops.chunks import row_chunks
from lapkernels.rules.choices import choice

# A multiply-add of the many small products over columns, in units of one in the direct kernel.
SMALL = 6.0


def takes_gram(columns: int, positions: int, out: int, features: int) -> bool:
    """Whether a layer of ``out`` and ``features`` entries a position should use Gram matrices."""
    wanted = choice("gram")
    if wanted is not None:
        return wanted
    direct = columns * positions * out * features
    small = columns * positions**2 * out + positions**2 * features
    return SMALL * small + positions**2 * out * features < direct


def gram_squared_sum(s: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    """sum_{n,v} G² [O, I / groups * K] of columns ``s`` [V, N, O, *out], ``x`` [N, I, *in].

    For Linear they are [V, N, T, O] and [N, T, I]; the layer is not transposed.
    """
    small = s if geometry.is_linear else s.flatten(3).mT  # [V, N, T, O]
    small = small.flatten(2, -2).unflatten(3, (geometry.groups, -1))
    columns, count, positions, groups, out = small.shape
    inputs = ops.unfolded(x[:1], geometry).shape[-1]
    total = s.new_zeros(groups, out, inputs)
    entries = groups * positions * (positions * (out + inputs) + columns * out)
    for rows in row_chunks(count, entries):
        entry = small[:, rows].permute(3, 4, 1, 2, 0)  # [groups, O / groups, n, T, V]
        gram = entry @ entry.mT
        below = ops.unfolded(x[rows], geometry).transpose(0, 1)  # [groups, n, T, I / groups * K]
        pairs = below.unsqueeze(2) * below.unsqueeze(3)
        total += gram.flatten(2) @ pairs.flatten(1, 3)
    return total.flatten(0, 1)
