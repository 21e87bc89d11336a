r"""Kronecker factors as laplace-torch holds them.

The block of a parameter, seen as a matrix [R, C] of its first dimension and all others, is
:math:`F_1 \otimes F_2` with [R, R] and [C, C]; a parameter with one dimension has one matrix. The
factor at a layer's outputs is a sum over the samples of a batch, the one at its inputs a sum that
is divided by the size of the whole data set, so that factors of batches add up.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from lapkernels.curvature import Factors, Refused


def kron_factors(name: str, factors: Factors, total: int) -> list[Tensor]:
    """The one or two matrices of a parameter, for a data set of ``total`` samples.

    The groups of a convolution share one input factor there: it is their average, and the output
    factor is zero between groups.
    """
    shape = factors.shape
    if factors.input_sum is None:
        if len(shape) == 1:
            return [factors.output[0]]
        raise Refused(
            f"{name} {shape} is added or scales, so its block is a matrix [{prod(shape)}, "
            f"{prod(shape)}], which laplace-torch's Kron cannot hold; 'diag' and 'full' work"
        )
    output = torch.block_diag(*factors.output)
    inputs = (factors.input_sum / total).mean(0)
    inputs = torch.diag(inputs) if inputs.dim() == 1 else inputs
    if factors.entries is None:
        return [output, inputs]
    order = torch.arange(prod(shape), device=output.device)
    if factors.groups == 1 and factors.entries[0].T.flatten().equal(order):
        # The parameter is the weight's transpose: an embedding, a transposed 1 x 1 convolution.
        return [inputs, output]
    rows, columns = shape[0], prod(shape[1:])
    raise Refused(
        f"{name} {shape} is the weight of a transposed convolution, whose factors are no matrices "
        f"[{rows}, {rows}] and [{columns}, {columns}] as laplace-torch's Kron needs them; 'diag' "
        "and 'full' work"
    )
