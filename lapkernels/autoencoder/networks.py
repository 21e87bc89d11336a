"""Networks with drawn weights, all draws at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


@torch.no_grad()
def drawn_outputs(
    network: nn.Module, weights: Mapping[str, Tensor], x: Tensor, *, each: bool = False
) -> Tensor:
    """Outputs [S, N, *out] of S networks with ``weights`` [S, *shape] by name.

    ``x`` is [N, *shape], the same for all, or with ``each`` [S, N, *shape], every network its own.
    """

    def run(drawn: dict[str, Tensor], given: Tensor) -> Tensor:
        return torch.func.functional_call(network, drawn, (given,))

    return torch.func.vmap(run, in_dims=(0, 0 if each else None))(dict(weights), x)
