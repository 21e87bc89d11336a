"""An equal mixture of posteriors around several modes, as of a deep ensemble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lapkernels.laplace import Laplace, Prediction
from lapkernels.likelihoods import Categorical, Gaussian, Likelihood


@dataclass(frozen=True)
class MixturePrediction(Prediction):
    """Moments of the mixture, and the predictions of its ``members``.

    ``likelihood`` has the members' average noise in regression, so that ``variance`` + ``noise`` is
    the variance of y.
    """

    members: tuple[Prediction, ...]

    def log_likelihood(self, y: Tensor) -> Tensor:
        """log p(y) of each target, the logarithm of the members' average density."""
        if not isinstance(self.likelihood, Gaussian):
            return super().log_likelihood(y)
        each = torch.stack([member.log_likelihood(y) for member in self.members])
        return each.logsumexp(0) - math.log(len(each))


class Mixture:
    """Predicts by the average over its members, each with a model of its own.

    All have one kind of likelihood; in regression the noise of each is its own.
    """

    def __init__(self, members: Sequence[Laplace]) -> None:
        if not members:
            raise ValueError("members is empty: at least one posterior is needed")
        kinds = {_kind(member.likelihood) for member in members}
        if len(kinds) > 1:
            raise ValueError(f"the members' likelihoods differ: {', '.join(sorted(kinds))}")
        self.members = tuple(members)

    def predict(self, x: Any, **options: Any) -> MixturePrediction:
        """The mixture's mean and variance of the outputs, and the members' mean of E[y].

        Variances add up to the members' average plus the spread of their means. ``options`` are
        those of :meth:`lapkernels.Laplace.predict`. Logits mean the same only up to a constant in
        each model, so of classes they are compared after subtracting their mean.
        """
        found = tuple(member.predict(x, **options) for member in self.members)
        classes = options.get("outputs") is None
        means = torch.stack([_comparable(prediction, classes) for prediction in found])
        covariance = None
        own = [p.covariance for p in found if p.covariance is not None]
        if own:
            away = (means - means.mean(0)).flatten(2)
            joint = torch.einsum("mni,mnj->nij", away, away) / len(found)
            covariance = joint + torch.stack(own).mean(0)
        expected = [p.expected for p in found if p.expected is not None]
        return MixturePrediction(
            mean=means.mean(0),
            variance=torch.stack([p.variance for p in found]).mean(0) + means.var(0, correction=0),
            covariance=covariance,
            expected=torch.stack(expected).mean(0) if expected else None,
            likelihood=_with_average_noise(found),
            members=found,
        )


def _kind(likelihood: Likelihood) -> str:
    """What members have in common: all settings but the noise."""
    return "Gaussian" if isinstance(likelihood, Gaussian) else repr(likelihood)


def _comparable(prediction: Prediction, classes: bool) -> Tensor:
    """The mean, of whole sets of logits without what they have in common."""
    mean, likelihood = prediction.mean, prediction.likelihood
    if classes and isinstance(likelihood, Categorical):
        return mean - mean.mean(likelihood.dim, keepdim=True)
    return mean


def _with_average_noise(found: Sequence[Prediction]) -> Likelihood:
    variances = [p.likelihood.variance for p in found if isinstance(p.likelihood, Gaussian)]
    if not variances:
        return found[0].likelihood
    like = found[0].mean
    each = [torch.as_tensor(v, dtype=like.dtype, device=like.device) for v in variances]
    return Gaussian(torch.stack(torch.broadcast_tensors(*each)).mean(0))
