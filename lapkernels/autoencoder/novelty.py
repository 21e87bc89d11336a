"""How unusual inputs are to an autoencoder, and how well that tells them apart."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lapkernels.autoencoder.interface import StochasticAutoencoder


@dataclass(frozen=True)
class Novelty:
    """Four scores [N], larger for what is more unusual.

    ``likelihood`` is -log p(x); ``typicality`` its distance from the mean over training data
    (Nalisnick et al., 2019), so that too large a likelihood counts as unusual too;
    ``latent_variance`` and ``output_variance`` are sums of the variances of latent variables and
    of reconstructions.
    """

    likelihood: Tensor
    typicality: Tensor
    latent_variance: Tensor
    output_variance: Tensor


def novelty(
    model: StochasticAutoencoder, x: Tensor, training: Tensor, samples: int = 100
) -> Novelty:
    """The scores of x [N, *shape]; ``training`` holds some inputs that the model was trained on."""
    found = model.describe(x, samples)
    entropy = -model.log_likelihood(training, samples).mean()
    return Novelty(
        -found.log_likelihood,
        (-found.log_likelihood - entropy).abs(),
        found.latent.variance.flatten(1).sum(1),
        found.output.variance.flatten(1).sum(1),
    )


@dataclass(frozen=True)
class Roc:
    """Shares of usual and of unusual inputs above each threshold, from the highest down, [T]."""

    false_positive: Tensor
    true_positive: Tensor

    @property
    def area(self) -> float:
        """AUROC: the probability that an unusual input has the larger score, ties by half."""
        return float(torch.trapezoid(self.true_positive, self.false_positive))


def roc(usual: Tensor, unusual: Tensor) -> Roc:
    """The curve of scores [N] and [M]."""
    for name, scores in (("usual", usual), ("unusual", unusual)):
        if scores.dim() != 1 or not len(scores) or not bool(scores.isfinite().all()):
            raise ValueError(f"{name} must hold finite scores [N], one at least")
    thresholds = torch.cat([usual, unusual]).double().unique().flip(0)
    shares = []
    for scores in (usual, unusual):
        ordered = scores.double().sort().values
        below = torch.searchsorted(ordered, thresholds)
        share = 1 - below.double() / len(scores)
        shares.append(torch.cat([share.new_zeros(1), share]))
    return Roc(shares[0], shares[1])


def areas(usual: Novelty, unusual: Novelty) -> dict[str, float]:
    """AUROC by each of the scores."""
    return {
        field.name: roc(getattr(usual, field.name), getattr(unusual, field.name)).area
        for field in fields(Novelty)
    }
