"""Outputs of networks with their own or drawn weights, all draws at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.contents import Contents, check_eval
from lapkernels.curvature.recording.run_model import call_model


@torch.no_grad()
def outputs(network: nn.Module, x: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """Outputs [N, *out] of a network in eval mode, with other ``weights`` in it if given."""
    check_eval(Contents.of(network))
    return call_model(network, (x,), {}, weights)


@torch.no_grad()
def drawn_outputs(
    network: nn.Module, weights: Mapping[str, Tensor], x: Tensor, *, each: bool = False
) -> Tensor:
    """Outputs [S, N, *out] of S networks with ``weights`` [S, *shape] by name.

    ``x`` is [N, *shape], the same for all, or with ``each`` [S, N, *shape], every network its own.
    """

    def run(drawn: dict[str, Tensor], given: Tensor) -> Tensor:
        return call_model(network, (given,), {}, drawn)

    check_eval(Contents.of(network))
    return torch.func.vmap(run, in_dims=(0, 0 if each else None))(dict(weights), x)
