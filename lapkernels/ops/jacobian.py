r"""The Jacobian columns of a layer's weight, materialised.

.. math:: G_{n,v}[o, i, k] = \sum_t S_{n,v}[o, t] \, X_n[i, k, t]

It has V * N * P numbers. Squares, products and sums of it have ops that never store it.
"""

from __future__ import annotations

from torch import Tensor

from lapkernels.ops.base.correlation import canonical
from lapkernels.ops.base.correlation import jacobian as _jacobian
from lapkernels.ops.base.geometry import Geometry


def jacobian(s: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    """G [V, N, *weight.shape] of ``s`` [V, N, O, *out] and ``x`` [N, I, *in].

    For Linear the tensors are [V, N, ..., O] and [N, ..., I].
    """
    value = _jacobian(*canonical(s, x, geometry))
    return value.squeeze(-1) if geometry.is_linear else value
