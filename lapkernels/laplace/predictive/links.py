r"""From Gaussian logits to class probabilities: E[softmax(f)] and E[sigmoid(f)], f ~ N(m, S).

Classes are the last dimension of ``mean`` [.., C]; ``covariance`` is [.., C, C].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapkernels.curvature.results.decompositions import eigen
from lapkernels.laplace.posterior import normal


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    r"""Logits :math:`m / \sqrt{1 + \pi v / 8}`, shrunk as a probit link would (MacKay, 1992)."""
    return mean / (1 + math.pi / 8 * variance).sqrt()


def mean_field(mean: Tensor, covariance: Tensor) -> Tensor:
    r"""Probabilities from all pairs of classes (Lu et al., 2020, second mean field).

    :math:`p_k \propto 1 / \sum_i \exp(-(m_k - m_i) / \sqrt{1 + \pi/8 \, v_{ki}})` with
    :math:`v_{ki} = S_{kk} + S_{ii} - 2 S_{ki}` the variance of the difference.
    """
    own = covariance.diagonal(dim1=-2, dim2=-1)
    spread = (own.unsqueeze(-1) + own.unsqueeze(-2) - 2 * covariance).clamp_min(0)
    difference = probit(mean.unsqueeze(-1) - mean.unsqueeze(-2), spread)
    return torch.softmax(-torch.logsumexp(-difference, -1), -1)


def bridge(mean: Tensor, covariance: Tensor) -> Tensor:
    r"""The mean of the Dirichlet that the Laplace bridge gives (Hobbhahn et al., 2022).

    :math:`\alpha_k = (1 - 2/C + e^{m_k} / C^2 \sum_l e^{-m_l}) / S_{kk}` on logits that sum to
    zero, as both m and S are made to.
    """
    classes = mean.shape[-1]
    rows = covariance.sum(-1)
    total = rows.sum(-1, keepdim=True)
    centred = mean - rows * mean.sum(-1, keepdim=True) / total
    own = covariance.diagonal(dim1=-2, dim2=-1) - rows.square() / total
    smallest = torch.finfo(mean.dtype).tiny
    sums = torch.logsumexp(-centred, -1, keepdim=True)
    alpha = (1 - 2 / classes + (centred + sums).exp() / classes**2) / own.clamp_min(smallest)
    return alpha / alpha.sum(-1, keepdim=True)


def gaussian_samples(
    mean: Tensor, covariance: Tensor, samples: int, generator: torch.Generator | None
) -> Tensor:
    """Draws of f, [samples, .., C]."""
    values, vectors = eigen(covariance, "the predictive covariance")
    noise = normal((samples, *mean.shape), mean, generator)
    return mean + ((vectors * values.sqrt().unsqueeze(-2)) @ noise.unsqueeze(-1)).squeeze(-1)
