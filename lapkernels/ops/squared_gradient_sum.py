r"""Squared gradients weighted by posterior variances: :math:`\sum_p \sigma_p^2 \, g_p^2`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.ops.base.parameter_lists import check_lists
from lapkernels.ops.base.registration import register


def squared_gradient_sum(gradient: Sequence[Tensor], log_sigma: Sequence[Tensor]) -> Tensor:
    """The sum, a scalar, over whole parameter lists in one pass; differentiable in both."""
    check_lists(gradient=gradient, log_sigma=log_sigma)
    return _op(list(gradient), list(log_sigma))


def _reference(gradient: Sequence[Tensor], log_sigma: Sequence[Tensor]) -> Tensor:
    terms = [((2 * ls).exp() * g.square()).sum() for g, ls in zip(gradient, log_sigma, strict=True)]
    return torch.stack(terms).sum()


def _backward(
    grad: Tensor,
    gradient: Sequence[Tensor],
    log_sigma: Sequence[Tensor],
    *,
    needs: Sequence[object],
) -> tuple[object, ...]:
    weighted = [2 * grad * (2 * ls).exp() * g for g, ls in zip(gradient, log_sigma, strict=True)]
    return weighted, [w * g for w, g in zip(weighted, gradient, strict=True)]


_op = register(
    "squared_gradient_sum",
    "Tensor[] gradient, Tensor[] log_sigma",
    reference=_reference,
    shape=lambda *rest: (),
    backward=_backward,
)
