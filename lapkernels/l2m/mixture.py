"""An equal mixture of posteriors around several modes, as of a deep ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from lapkernels.laplace import Laplace, Prediction
from lapkernels.likelihoods import Categorical


class Mixture:
    """Predicts by the average over its members, each with a model of its own."""

    def __init__(self, members: Sequence[Laplace]) -> None:
        if not members:
            raise ValueError("members is empty: at least one posterior is needed")
        kinds = {repr(member.likelihood) for member in members}
        if len(kinds) > 1:
            raise ValueError(f"the members' likelihoods differ: {', '.join(sorted(kinds))}")
        self.members = tuple(members)

    def predict(self, x: Any, **options: Any) -> Prediction:
        """The mixture's mean and variance of the outputs, and the members' mean of E[y].

        Variances add up to the members' average plus the spread of their means. ``options`` are
        those of :meth:`lapkernels.Laplace.predict`. Logits mean the same only up to a constant in
        each model, so of classes they are compared after subtracting their mean.
        """
        found = [member.predict(x, **options) for member in self.members]
        first = found[0]
        means = torch.stack([prediction.mean for prediction in found])
        if isinstance(first.likelihood, Categorical) and options.get("outputs") is None:
            means = means - means.mean(first.likelihood.dim + 1, keepdim=True)
        spread = means.var(0, correction=0)
        covariance = None
        own = [p.covariance for p in found if p.covariance is not None]
        if own:
            away = (means - means.mean(0)).flatten(2)
            joint = torch.einsum("mni,mnj->nij", away, away) / len(found)
            covariance = joint + torch.stack(own).mean(0)
        expected = [p.expected for p in found if p.expected is not None]
        return replace(
            first,
            mean=means.mean(0),
            variance=torch.stack([p.variance for p in found]).mean(0) + spread,
            covariance=covariance,
            expected=torch.stack(expected).mean(0) if expected else None,
        )
