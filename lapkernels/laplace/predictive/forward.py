"""The model's output on one batch, and which outputs belong to one target."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Batch, Output, selector
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.recording.run_model import call_model
from lapkernels.likelihoods import Categorical, HeteroscedasticGaussian, Likelihood


@torch.no_grad()
def forward(
    model: nn.Module, batch: Batch, output: Output, values: dict[str, Tensor] | None = None
) -> Tensor:
    """Outputs [N, *out], with other ``values`` of some parameters if they are given."""
    with random_state_kept(model, batch.args, batch.kwargs):
        result = call_model(model, batch.args, batch.kwargs, values)
    return selector(output, batch.count)(result)


def positions_of(f: Tensor, likelihood: Likelihood) -> Tensor:
    """Flat indices [T, C] of the outputs of each target: classes, mean and log-variance, or one.

    The targets are in the order of their own flattened dimensions.
    """
    shape = f.shape[1:]
    index = torch.arange(shape.numel(), device=f.device).reshape(1, *shape)
    if isinstance(likelihood, Categorical):
        return index.movedim(likelihood.dim, -1).reshape(-1, f.shape[likelihood.dim])
    if isinstance(likelihood, HeteroscedasticGaussian):
        return torch.stack([part.flatten() for part in index.chunk(2, likelihood.dim)], 1)
    return index.reshape(-1, 1)
