"""The predictive distribution of new inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
)
from lapkernels.curvature.data.contents import Contents, check_eval, check_mode
from lapkernels.curvature.errors import NoBatch
from lapkernels.curvature.recording.targets import with_targets
from lapkernels.laplace.posterior import Posterior, normal
from lapkernels.laplace.predictive import links
from lapkernels.laplace.predictive.draws import linearised_draws
from lapkernels.laplace.predictive.forward import forward, positions_of
from lapkernels.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
)

Link = Literal["probit", "mc", "bridge", "mean_field"]
How = Literal["linearised", "draws", "propagated", "weights"]


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        kind, shape = type(self.likelihood).__name__, list(self.mean.shape)
        std = self.std
        lines = [f"Prediction, {kind}, mean {shape}, std {float(std.mean()):.3g} on average"]
        if isinstance(self.likelihood, Categorical | Bernoulli) and self.expected is not None:
            lines.append(f"  probabilities {list(self.expected.shape)}")
        if self.covariance is not None:
            lines.append(f"  covariance {list(self.covariance.shape)}")
        if isinstance(self.likelihood, Gaussian | HeteroscedasticGaussian):
            total = float(self.total_std.mean())
            lines.append(f"  total_std, with the noise, {total:.3g} on average")
        return "\n".join(lines)

    @property
    def std(self) -> Tensor:
        """Standard deviation of f, without the noise of y around it: that is ``total_std``."""
        return self.variance.sqrt()

    @property
    def total_std(self) -> Tensor:
        """Standard deviation of y: of f and of the noise, regression only."""
        return self.total_variance.sqrt()

    @property
    def total_variance(self) -> Tensor:
        """Variance of y, regression only. With log-variances l as outputs, v_m + E[exp(l)]."""
        if isinstance(self.likelihood, HeteroscedasticGaussian):
            _, log_noise = self.mean.chunk(2, self.likelihood.dim)
            v, of_noise = self.variance.chunk(2, self.likelihood.dim)
            return v + (log_noise + of_noise / 2).exp()
        return self.variance + self.noise

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
        if isinstance(likelihood, Categorical | Bernoulli):
            _ = self.probabilities  # Raises where there are none.
        likelihood.check(self.mean, y)
        if isinstance(likelihood, Gaussian | HeteroscedasticGaussian):
            mean = expectation(self.mean, self.variance, likelihood)
            variance = self.total_variance
            return -0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log())
        if not isinstance(likelihood, Categorical | Bernoulli):
            raise NotImplementedError(
                f"the predictive density of {type(likelihood).__name__} has no closed form"
            )
        p = self.probabilities
        if isinstance(likelihood, Bernoulli):
            y = y.to(p.dtype)
            return torch.xlogy(y, p) + torch.xlogy(1 - y, 1 - p)
        if y.is_floating_point():
            return torch.xlogy(y, p).sum(likelihood.dim)
        kept = y != likelihood.ignore_index
        labels = y.where(kept, 0).long().unsqueeze(likelihood.dim)
        return p.log().gather(likelihood.dim, labels).squeeze(likelihood.dim).where(kept, 0)


def joined(parts: Sequence[Prediction]) -> Prediction:
    """The predictions of one batch after the other."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        raise NoBatch("x holds no batch")

    def together(name: str) -> Tensor | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else torch.cat(found)

    mean, variance, covariance, expected = map(
        together, ("mean", "variance", "covariance", "expected")
    )
    assert mean is not None and variance is not None
    return Prediction(mean, variance, covariance, expected, parts[0].likelihood)


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
    temperature: float = 1.0,
) -> Prediction:
    """The predictive distribution of inputs ``x``."""
    check_choice("how", how, How)
    check_choice("link", link, Link)
    if how != "linearised" and (joint or outputs is not None or link != "probit"):
        raise ValueError(f"joint=, outputs= and link= need how='linearised', not {how!r}")
    (check_eval if how == "weights" else check_mode)(Contents.of(model))
    (batch,) = with_targets(model, batches_of([(x, None)]))
    if how == "draws":
        draws = (samples, generator, output, temperature)
        return _by_draws(model, batch, posterior, likelihood, *draws)
    if how == "weights":
        draws = (samples, generator, output, temperature)
        return _by_weights(model, batch, posterior, likelihood, *draws)
    means: list[Tensor] = []
    observed = Observed(batch.inputs, lambda f, y: means.append(f))
    if how == "propagated":
        variance = propagated_variance(model, observed, posterior.variance(), output=output)
        mean = torch.cat(means)
        expected = expectation(mean, variance, likelihood, temperature)
        return Prediction(mean, variance, None, expected, likelihood)
    blocks = posterior.blocks()
    options: dict[str, Any] = {"output": output, "memory_budget": memory_budget}
    # The covariance of all outputs contains the variances, if they are one set of classes.
    linked = isinstance(likelihood, Categorical) and link != "probit" and outputs is None
    covariance = None
    if joint or (linked and forward(model, batch, output).dim() == 2):
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
        expected = expectation(mean, variance, likelihood, temperature) if alone else None
        return Prediction(mean, variance, covariance, expected, likelihood)
    variance = variance.reshape(mean.shape)

    def of_classes(positions: Tensor) -> Tensor:
        if covariance is not None:
            found = covariance[:, positions.unsqueeze(1), positions]
        else:
            found = predictive_covariance(model, batch.inputs, blocks, outputs=positions, **options)
        return found / temperature**2

    if link == "probit":
        expected = expectation(mean, variance, likelihood, temperature)
    else:
        scaled = mean / temperature, variance / temperature**2
        expected = _linked(*scaled, likelihood, link, samples, generator, of_classes)
    return Prediction(mean, variance, covariance if joint else None, expected, likelihood)


def _with_noise_of(likelihood: Likelihood, outputs: Tensor, shape: torch.Size) -> Likelihood:
    """The likelihood of flat ``outputs`` alone, where each output has a noise of its own."""
    variance = likelihood.variance if isinstance(likelihood, Gaussian) else None
    if not isinstance(variance, Tensor) or variance.numel() == 1:
        return likelihood
    return Gaussian(variance.expand(shape).flatten()[outputs.to(variance.device)])


def expectation(
    mean: Tensor, variance: Tensor, likelihood: Likelihood, temperature: float = 1.0
) -> Tensor:
    """E[y] of independent Gaussian outputs; classes by the probit approximation."""
    if isinstance(likelihood, Categorical | Bernoulli):
        likelihood.check_shapes(mean)
        logits = links.probit(mean / temperature, variance / temperature**2)
        dim = likelihood.dim if isinstance(likelihood, Categorical) else None
        return logits.sigmoid() if dim is None else logits.softmax(dim)
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
    for positions in positions_of(mean, likelihood):
        m, covariance = flat[:, positions], of_classes(positions)
        if link == "bridge":
            p = links.bridge(m, covariance)
        elif link == "mean_field":
            p = links.mean_field(m, covariance)
        else:
            p = links.gaussian_samples(m, covariance, samples, generator).softmax(-1).mean(0)
        filled[:, positions] = p
    return result


@torch.no_grad()
def _by_draws(
    model: nn.Module,
    batch: Batch,
    posterior: Posterior,
    likelihood: Likelihood,
    samples: int,
    generator: torch.Generator | None,
    output: Output,
    temperature: float,
) -> Prediction:
    """Mean f, and variance and E[y] over draws of the linearised function."""
    if samples < 1:
        raise ValueError(f"samples={samples} must be positive")
    mean = square = expected = torch.zeros((), device="cpu")
    for f, steps in linearised_draws(model, batch, posterior, output, samples, generator):
        mean = f
        for step in steps:
            square = square + step.square() / samples
            y = expectation(f + step, torch.zeros_like(f), likelihood, temperature)
            expected = expected + y / samples
    return Prediction(mean, square, None, expected, likelihood)


def _by_weights(
    model: nn.Module,
    batch: Batch,
    posterior: Posterior,
    likelihood: Likelihood,
    samples: int,
    generator: torch.Generator | None,
    output: Output,
    temperature: float,
) -> Prediction:
    """Average over models with drawn weights, one draw in memory at a time."""
    if samples < 2:
        raise ValueError(f"samples={samples}: how='weights' needs at least two")
    centre = {name: p.detach() for name, p in model.named_parameters()}
    mean = square = expected = torch.zeros((), device="cpu")
    for number in range(samples):
        drawn = posterior.sample(1, generator)
        values = {name: centre[name] + step[0] for name, step in drawn.items()}
        f = forward(model, batch, output, values)
        # Running means (Welford), so that nothing cancels.
        difference = f - mean
        mean = mean + difference / (number + 1)
        square = square + difference * (f - mean)
        y = expectation(f, torch.zeros_like(f), likelihood, temperature)
        expected = expected + (y - expected) / (number + 1)
    return Prediction(mean, square / (samples - 1), None, expected, likelihood)
