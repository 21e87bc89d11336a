r"""Variance of all outputs at once, passed forward from op to op: an approximation.

The forward dual of the approximate diagonal. A convolution with independent weights turns variances
into

.. math:: v_z = \mathrm{conv}(x^2, \sigma_w^2) + \mathrm{conv}(v_x, w^2) + \sigma_b^2, \qquad
          v_a = \varphi'(z)^2 v_z,

and every other op likewise, :math:`v_{out}[o] = \sum_i J[o, i]^2 v_{in}[i]`: correlations between
entries of a value are dropped. Exact for one layer, and where no two paths from a parameter meet
again.

The approximate diagonal D(m) is linear in the diagonal m at the outputs, and v is its transpose:
:math:`v = \nabla_m \langle \sigma^2, D(m) \rangle`. One walk back and its gradient give all
outputs, however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.diagonal_walk import pull_diagonal
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.passes import passes
from lapkernels.curvature.predictive import check_prediction, check_variance
from lapkernels.curvature.selection import Output, input_batches


@torch.no_grad()
def propagated_variance(
    model: nn.Module, x: Any, variance: Mapping[str, Tensor], *, output: Output = None
) -> Tensor:
    """Approximate variance [N, *out] of all outputs of inputs ``x``, a batch or several batches.

    ``variance`` has a tensor of its shape for each parameter that is uncertain; the others count as
    known. :func:`lapkernels.predictive_variance` is exact for the linearised model, at the cost of
    a column for each output.
    """
    check_variance(model, variance)
    _, batches = passes(model, input_batches(x), params=list(variance), output=output)
    parts = []
    for one in batches:
        check_prediction(one.prediction)
        if one.plan.trace.opaque:
            raise Refused(
                f"{one.plan.trace.opaque[0]}, through which no variance can be passed; "
                "predictive_variance works"
            )
        m = torch.zeros_like(one.prediction, requires_grad=True)
        total: list[Tensor] = []

        def add(name: str, value: Tensor, total: list[Tensor] = total) -> None:
            total.append((variance[name] * value).sum())

        with torch.enable_grad():
            pull_diagonal(one.plan, m, add)
            (v,) = torch.autograd.grad(torch.stack(total).sum(), m)
        parts.append(v)
    return torch.cat(parts)
