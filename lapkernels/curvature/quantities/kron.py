r"""Kronecker factors of the Gauss-Newton matrix: KFAC, KFLR and their empirical sibling.

For a weight that is applied at T positions of each sample, with inputs :math:`x_{n,t}` and columns
:math:`s_{n,v,t}` at its outputs, the block of the weight is approximated by :math:`B \otimes A`,

.. math::
   \text{expand:} \quad & B = \sum_{n,v,t} s_{n,v,t} s_{n,v,t}^T, &
       A &= \tfrac1N \sum_n \tfrac1T \sum_t x_{n,t} x_{n,t}^T \\
   \text{reduce:} \quad & B = \sum_{n,v} \bar s_{n,v} \bar s_{n,v}^T, &
       A &= \tfrac1N \sum_n \bar x_n \bar x_n^T, \qquad
       \bar s = \textstyle\sum_t s_t, \; \bar x = \tfrac1T \sum_t x_t

(Eschenhagen et al. 2023). A module that is called several times has the positions of all its calls.

- A weight of a Linear, a convolution or a product has both factors, one pair a group.
- An embedding has them too: its input is one-hot, so in ``expand`` A is diagonal, the average share
  of each token. Tokens at ``padding_idx`` count as positions with no input.
- A table [V, D] that is an embedding and the weight of a Linear layer to V outputs, as in language
  models with tied embeddings, is one layer with the positions r of both uses, R in all. At each the
  block is a product of a moment on the side of the vocabulary and one on that of the features:
  :math:`e e^T \otimes \sum_v s s^T` where a token e is looked up, with columns s at the result, and
  :math:`\sum_v s s^T \otimes x x^T` in the Linear layer, with input x. With U and W their sums over
  positions, of U only the diagonal,

  .. math:: \tfrac1N \operatorname{diag}(\textstyle\sum_n \tfrac1R U_n) \otimes \sum_n W_n .

  Its factor ``input`` is on the side of the vocabulary and ``output`` on that of the features, as
  an embedding's are. In ``reduce`` s is a sum and e and x are means over the positions of a use,
  and R counts uses.
- A parameter that is added, a bias, has the only factor B [P, P].
- A parameter that scales, such as the gain of a norm or the slope of PReLU, or is no weight of a
  product, has its exact block [P, P].
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from lapkernels.curvature.data.autocast import for_models_alone
from lapkernels.curvature.data.batches import Output, check_choice
from lapkernels.curvature.data.contents import Parameters
from lapkernels.curvature.data.processes import summed
from lapkernels.curvature.passes.passes import Route
from lapkernels.curvature.quantities.kronecker_sums import KroneckerSums
from lapkernels.curvature.quantities.loop import Loop, OutputFactor, Sampler
from lapkernels.curvature.results.kronecker import Kronecker
from lapkernels.curvature.results.summary import finite
from lapkernels.likelihoods import resolve
from lapkernels.ops.base.checks import gathered

Method = Literal["mc", "exact", "empirical"]
Sharing = Literal["expand", "reduce"]


@summed
@for_models_alone
@torch.no_grad()
def kron(
    model: nn.Module,
    data: Any,
    likelihood: Any = "gaussian",
    method: Method = "mc",
    sharing: Sharing = "expand",
    *,
    params: Parameters = None,
    output: Output = None,
    samples: int = 1,
    sampler: Sampler = "labels",
    memory_budget: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    explain: bool = False,
    route: Route = "auto",
) -> Kronecker:
    r"""Kronecker factors of :math:`\sum_n J_n^T H_n J_n`, by parameter name.

    ``method`` chooses the columns: labels sampled from the model ("mc", KFAC), all columns of the
    output Hessian ("exact", KFLR), or the score of the true labels ("empirical").

    Raises ``Refused`` where a parameter has no such factors: one that is tied across different
    kinds of layers, or whose weight is an expression of parameters.
    """
    check_choice("method", method, Method)
    check_choice("sharing", sharing, Sharing)
    factor = OutputFactor(resolve(likelihood), method, samples, sampler, generator)
    options = (params, output, memory_budget, progress, route)
    loop = Loop(model, data, factor, *options, explain=explain)
    total = KroneckerSums(loop.chosen, sharing == "reduce")
    loop.add_to(total)
    found = {name: total.factors(name, loop.count) for name in loop.chosen}
    inputs = {name: factors.input_sum for name, factors in found.items()}
    with gathered():
        finite({name: factors.output for name, factors in found.items()})
        finite({name: value for name, value in inputs.items() if value is not None})
    return Kronecker(found, loop.summary(f"{method} {sharing}"))
