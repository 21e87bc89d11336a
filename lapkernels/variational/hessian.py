"""The diagonal of a Hessian that can itself be differentiated, for small networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.curvature.by_autograd.products import check_differentiable


def hessian_diagonal(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """d² loss / dp² of every entry, one backward pass for each."""
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
    check_differentiable(gradients)
    return [_diagonal(g, p) for g, p in zip(gradients, parameters, strict=True)]


def _diagonal(gradient: Tensor, parameter: Tensor) -> Tensor:
    if not gradient.requires_grad:
        return torch.zeros_like(parameter)
    rows = (
        torch.autograd.grad(entry, parameter, create_graph=True, materialize_grads=True)[0]
        for entry in gradient.flatten()
    )
    return torch.stack([row.flatten()[i] for i, row in enumerate(rows)]).view_as(parameter)
