r"""The unfolded input of a layer itself, for what has to see it.

.. math:: Z_n = W X_n, \qquad X_n \in R^{I K \times T}

This one is materialised: K times the input. The Kronecker factors have an op that is not.
"""

from __future__ import annotations

from torch import Tensor

from lapkernels.ops._correlation import pad_input
from lapkernels.ops._patches import patches
from lapkernels.ops.geometry import Geometry, channels_first


def unfolded(x: Tensor, geometry: Geometry) -> Tensor:
    """What the weight is multiplied with, [N, groups, T, I / groups * K], of ``x`` [N, I, *in]."""
    x, geometry = pad_input(x, geometry)
    entry = channels_first(x, geometry, 1)
    size = tuple(entry.shape[2:])
    positions = size if geometry.is_linear else geometry.output_size(size)
    kernel = geometry.kernel_size or (1,)
    return patches(entry, positions, kernel, *geometry.arguments, geometry.transposed)
