r"""Variance of all outputs at once, passed forward from op to op: an approximation.

The forward dual of the approximate diagonal. A convolution with independent weights maps variances
to

.. math:: v_z = \mathrm{conv}(x^2, \sigma_w^2) + \mathrm{conv}(v_x, w^2) + \sigma_b^2, \qquad
          v_a = \varphi'(z)^2 v_z,

and every other op likewise, :math:`v_{out}[o] = \sum_i J[o, i]^2 v_{in}[i]`: correlations between
entries of a value are dropped. Exact for one layer, and where no two paths from a parameter join.

The approximate diagonal is linear in the diagonal at the outputs, and this is its transpose, op by
op. One pass gives all outputs, however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.diagonal import push_variance
from lapkernels.curvature.data.autocast import for_models_alone
from lapkernels.curvature.data.batches import Output
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.quantities.loop import OutputLoop
from lapkernels.curvature.quantities.predictive import check_variance
from lapkernels.curvature.results.summary import finite
from lapkernels.ops.base.precision import HALF

# Bytes of activations up to which a batch is not split.
PARTS = 4


@for_models_alone
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
    parts = []
    for one, _ in OutputLoop(model, x, None, list(variance), output, parts=PARTS):
        if one.graph.trace.opaque:
            raise Refused(
                f"{one.graph.trace.opaque[0]}, through which no variance can be passed; "
                "predictive_variance works"
            )
        half = one.graph.trace.dtypes.intersection(HALF)
        if half:
            raise Refused(
                f"the model has values in {half.pop()}, through which no variance is passed; "
                "predictive_variance works"
            )
        parts.append(push_variance(one.graph, variance))
    return finite({"the outputs": torch.cat(parts)}, "variance")["the outputs"]
