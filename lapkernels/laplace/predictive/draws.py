r"""Draws of the linearised function, :math:`f + J \delta` with :math:`\delta \sim N(0, A^{-1})`.

J δ comes from a forward-mode product, all outputs at once: the cost grows with the draws and not
with the outputs. A variance from S draws has a relative standard error of :math:`\sqrt{2 / S}`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lapkernels.curvature.by_autograd.products import graph_of
from lapkernels.curvature.data.batches import Batch, Output
from lapkernels.curvature.data.contents import Contents
from lapkernels.laplace.posterior import Posterior

# Draws whose parameters are in memory together.
TOGETHER = 8


def linearised_draws(
    model: nn.Module,
    batch: Batch,
    posterior: Posterior,
    output: Output,
    samples: int,
    generator: torch.Generator | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The outputs f [N, *out] with J δ [K, N, *out], a few draws at a time."""
    every = Contents.of(model).parameters
    chosen = {name: every[name] for name in posterior.shapes}
    with graph_of(model, batch, chosen, output) as graph:
        for first in range(0, samples, TOGETHER):
            drawn = posterior.sample(min(TOGETHER, samples - first), generator)
            step = graph.product([drawn[name] for name in chosen], 1)
            yield graph.f.detach(), step.detach()
