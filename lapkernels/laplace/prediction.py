"""The predictive distribution of new inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapkernels.curvature import predictive_covariance, predictive_variance, propagated_variance
from lapkernels.curvature.data.batches import (
    Batch,
    Observed,
    Output,
    batches_of,
    check_choice,
    selector,
)
from lapkernels.curvature.data.contents import Contents, check_eval, check_mode
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.recording.run_model import call_model
from lapkernels.laplace import links
from lapkernels.laplace.posterior import Posterior, normal
from lapkernels.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
)

Link = Literal["probit", "mc", "bridge", "mean_field"]
How = Literal["linearised", "propagated", "weights"]


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution of N inputs.

    ``mean`` and ``variance`` [N, *out] are of the outputs f; ``covariance`` [N, D, D] is joint over
    the flattened outputs, None unless ``joint``. ``expected`` is E[y]: class probabilities, the
    rate of counts, or the mean itself; None if ``outputs`` picked single logits.
    ``noise`` is the variance of y around f in regression.
    """

    mean: Tensor
    variance: Tensor
    covariance: Tensor | None
    expected: Tensor | None
    likelihood: Likelihood

    @property
    def std(self) -> Tensor:
        """Standard deviation of f."""
        return self.variance.sqrt()

    @property
    def noise(self) -> Tensor:
        """Variance of y around f, regression only."""
        if not isinstance(self.likelihood, Gaussian):
            raise AttributeError(f"{type(self.likelihood).__name__} has no additive noise")
        value = torch.as_tensor(
            self.likelihood.variance, dtype=self.mean.dtype, device=self.mean.device
        )
        return value.expand(self.mean.shape)

    @property
    def probabilities(self) -> Tensor:
        """Class probabilities, classification only."""
        if not isinstance(self.likelihood, Categorical | Bernoulli):
            raise AttributeError(
                f"{type(self.likelihood).__name__} has no probabilities: see mean and variance"
            )
        if self.expected is None:
            raise AttributeError(
                "outputs= picked logits one by one, of which no probabilities follow: pick whole "
                "positions, with output=lambda f: f[:, :, chosen]"
            )
        return self.expected

    def log_likelihood(self, y: Tensor) -> Tensor:
        """log p(y) of each target under the predictive distribution, zero of ignored ones.

        Of targets that are probabilities themselves it is the mean over them.
        """
        likelihood = self.likelihood
        if not isinstance(likelihood, Gaussian | Categorical | Bernoulli):
            raise NotImplementedError(
                f"the predictive density of {type(likelihood).__name__} has no closed form"
            )
        p = self.mean if isinstance(likelihood, Gaussian) else self.probabilities
        likelihood.check(self.mean, y)
        if isinstance(likelihood, Gaussian):
            variance = self.variance + self.noise
            return -0.5 * ((y - self.mean).square() / variance + (2 * math.pi * variance).log())
        if isinstance(likelihood, Bernoulli):
            y = y.to(p.dtype)
            return torch.xlogy(y, p) + torch.xlogy(1 - y, 1 - p)
        if y.is_floating_point():
            return torch.xlogy(y, p).sum(likelihood.dim)
        kept = y != likelihood.ignore_index
        labels = y.where(kept, 0).long().unsqueeze(likelihood.dim)
        return p.log().gather(likelihood.dim, labels).squeeze(likelihood.dim).where(kept, 0)


def predict(
    model: nn.Module,
    x: Any,
    posterior: Posterior,
    likelihood: Likelihood,
    *,
    how: How,
    link: Link,
    joint: bool,
    outputs: Tensor | None,
    samples: int,
    generator: torch.Generator | None,
    output: Output,
    memory_budget: int | None,
) -> Prediction:
    """The predictive distribution of inputs ``x``."""
    check_choice("how", how, How)
    check_choice("link", link, Link)
    if how != "linearised" and (joint or outputs is not None or link != "probit"):
        raise ValueError(f"joint=, outputs= and link= need how='linearised', not {how!r}")
    (check_eval if how == "weights" else check_mode)(Contents.of(model))
    (batch,) = batches_of([(x, None)])
    if how == "weights":
        return _by_weights(model, batch, posterior, likelihood, samples, generator, output)
    means: list[Tensor] = []
    observed = Observed(batch.inputs, lambda f, y: means.append(f))
    if how == "propagated":
        variance = propagated_variance(model, observed, posterior.variance(), output=output)
        mean = torch.cat(means)
        return Prediction(mean, variance, None, expectation(mean, variance, likelihood), likelihood)
    blocks = posterior.blocks()
    options: dict[str, Any] = {"output": output, "memory_budget": memory_budget}
    # The covariance of all outputs contains the variances, if they are one set of classes.
    linked = isinstance(likelihood, Categorical) and link != "probit" and outputs is None
    covariance = None
    if joint or (linked and _forward(model, batch, output).dim() == 2):
        covariance = predictive_covariance(model, observed, blocks, outputs=outputs, **options)
        variance = covariance.diagonal(dim1=1, dim2=2)
    else:
        variance = predictive_variance(model, observed, blocks, outputs=outputs, **options)
    mean = torch.cat(means)
    if outputs is not None:
        likelihood = _with_noise_of(likelihood, outputs, mean.shape[1:])
        mean = mean.flatten(1).gather(1, outputs.to(mean.device).expand(len(mean), -1))
        variance = variance.reshape(mean.shape)
        # Classes, and means with their variances, belong together.
        alone = not isinstance(likelihood, Categorical | HeteroscedasticGaussian)
        expected = expectation(mean, variance, likelihood) if alone else None
        return Prediction(mean, variance, covariance, expected, likelihood)
    variance = variance.reshape(mean.shape)

    def of_classes(positions: Tensor) -> Tensor:
        if covariance is not None:
            return covariance[:, positions.unsqueeze(1), positions]
        return predictive_covariance(model, batch.inputs, blocks, outputs=positions, **options)

    if link == "probit":
        expected = expectation(mean, variance, likelihood)
    else:
        expected = _linked(mean, variance, likelihood, link, samples, generator, of_classes)
    return Prediction(mean, variance, covariance if joint else None, expected, likelihood)


def _with_noise_of(likelihood: Likelihood, outputs: Tensor, shape: torch.Size) -> Likelihood:
    """The likelihood of flat ``outputs`` alone, where each output has a noise of its own."""
    variance = likelihood.variance if isinstance(likelihood, Gaussian) else None
    if not isinstance(variance, Tensor) or variance.numel() == 1:
        return likelihood
    return Gaussian(variance.expand(shape).flatten()[outputs.to(variance.device)])


def expectation(mean: Tensor, variance: Tensor, likelihood: Likelihood) -> Tensor:
    """E[y] of independent Gaussian outputs; classes by the probit approximation."""
    if isinstance(likelihood, Categorical):
        likelihood.check_shapes(mean)
        return links.probit(mean, variance).softmax(likelihood.dim)
    if isinstance(likelihood, Bernoulli):
        return links.probit(mean, variance).sigmoid()
    if isinstance(likelihood, Poisson):
        return (mean + variance / 2).exp()
    if isinstance(likelihood, HeteroscedasticGaussian):
        return mean.chunk(2, likelihood.dim)[0]
    return mean


def _linked(
    mean: Tensor,
    variance: Tensor,
    likelihood: Likelihood,
    link: Link,
    samples: int,
    generator: torch.Generator | None,
    of_classes: Callable[[Tensor], Tensor],
) -> Tensor:
    """Probabilities that need the covariance between classes, position by position."""
    if isinstance(likelihood, Bernoulli) and link == "mc":
        noise = normal((samples, *mean.shape), mean, generator)
        return (mean + noise * variance.sqrt()).sigmoid().mean(0)
    if not isinstance(likelihood, Categorical):
        raise ValueError(f"link={link!r} is for classes, not for {type(likelihood).__name__}")
    likelihood.check_shapes(mean)
    result = torch.empty_like(mean)
    flat, filled = mean.flatten(1), result.view(len(mean), -1)
    for positions in _positions(mean, likelihood.dim):
        m, covariance = flat[:, positions], of_classes(positions)
        if link == "bridge":
            p = links.bridge(m, covariance)
        elif link == "mean_field":
            p = links.mean_field(m, covariance)
        else:
            p = links.gaussian_samples(m, covariance, samples, generator).softmax(-1).mean(0)
        filled[:, positions] = p
    return result


def _positions(mean: Tensor, dim: int) -> Iterator[Tensor]:
    """Flat indices of the classes at each position of the outputs."""
    shape = mean.shape[1:]
    index = torch.arange(shape.numel(), device=mean.device).reshape(1, *shape)
    yield from index.movedim(dim, -1).reshape(-1, mean.shape[dim])


def _by_weights(
    model: nn.Module,
    batch: Batch,
    posterior: Posterior,
    likelihood: Likelihood,
    samples: int,
    generator: torch.Generator | None,
    output: Output,
) -> Prediction:
    """Average over models with drawn weights, one draw in memory at a time."""
    if samples < 2:
        raise ValueError(f"samples={samples}: how='weights' needs at least two")
    centre = {name: p.detach() for name, p in model.named_parameters()}
    mean = square = expected = torch.zeros((), device="cpu")
    for number in range(samples):
        drawn = posterior.sample(1, generator)
        values = {name: centre[name] + step[0] for name, step in drawn.items()}
        f = _forward(model, batch, output, values)
        # Running means (Welford), so that nothing cancels.
        difference = f - mean
        mean = mean + difference / (number + 1)
        square = square + difference * (f - mean)
        y = expectation(f, torch.zeros_like(f), likelihood)
        expected = expected + (y - expected) / (number + 1)
    return Prediction(mean, square / (samples - 1), None, expected, likelihood)


@torch.no_grad()
def _forward(
    model: nn.Module, batch: Batch, output: Output, values: dict[str, Tensor] | None = None
) -> Tensor:
    with random_state_kept(model, batch.args, batch.kwargs):
        result = call_model(model, batch.args, batch.kwargs, values)
    return selector(output, batch.count)(result)
