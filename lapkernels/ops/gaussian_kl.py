r"""KL divergence of a diagonal Gaussian posterior from a zero-mean isotropic prior.

.. math:: KL = \frac12 \sum_p \Big[ \frac{\sigma_p^2 + \mu_p^2}{s^2} - 1
          + \log \frac{s^2}{\sigma_p^2} \Big]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.ops.base.parameter_lists import check_lists
from lapkernels.ops.base.registration import register


def gaussian_kl(mean: Sequence[Tensor], log_sigma: Sequence[Tensor], prior_sigma: float) -> Tensor:
    """The divergence, a scalar, over whole parameter lists in one pass; differentiable in both."""
    if not prior_sigma > 0:
        raise ValueError(f"prior_sigma={prior_sigma} must be positive")
    check_lists(mean=mean, log_sigma=log_sigma)
    return _op(list(mean), list(log_sigma), prior_sigma)


def _reference(mean: Sequence[Tensor], log_sigma: Sequence[Tensor], prior_sigma: float) -> Tensor:
    terms = [
        ((2 * ls).exp() + mu.square()).sum() / prior_sigma**2
        - 2 * ls.sum()
        + mu.numel() * (2 * math.log(prior_sigma) - 1)
        for mu, ls in zip(mean, log_sigma, strict=True)
    ]
    return 0.5 * torch.stack(terms).sum()


def _backward(
    grad: Tensor,
    mean: Sequence[Tensor],
    log_sigma: Sequence[Tensor],
    prior_sigma: float,
    *,
    needs: Sequence[object],
) -> tuple[object, ...]:
    precision = grad / prior_sigma**2
    return (
        [mu * precision for mu in mean],
        [(2 * ls).exp() * precision - grad for ls in log_sigma],
        None,
    )


_op = register(
    "gaussian_kl",
    "Tensor[] mean, Tensor[] log_sigma, float prior_sigma",
    reference=_reference,
    shape=lambda *rest: (),
    backward=_backward,
)
