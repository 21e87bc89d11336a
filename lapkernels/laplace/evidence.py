r"""The Laplace approximation of the evidence, and what it says of the prior and the noise.

.. math:: \log p(y | X) \approx \log p(y | X, \theta) - \tfrac12 \left( \theta^T \Lambda \theta
          + \log |A| - \log |\Lambda| \right), \qquad A = c H + \Lambda .

For a Gaussian likelihood c rescales the noise: its variance is that of the fit over c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lapkernels.laplace.posterior import Posterior
from lapkernels.laplace.prior import Prior

# Precisions stay within these bounds, where evidence would push one to zero or infinity.
SMALLEST, LARGEST = 1e-10, 1e10


@dataclass(frozen=True)
class Evidence:
    """The evidence as a function of the prior and of c.

    ``theta`` are the parameters by name, ``nll`` and ``constant`` make up -log p(y | X, θ) at c = 1
    over ``targets`` observed numbers.
    """

    posterior: Posterior
    theta: Mapping[str, Tensor]
    nll: float
    constant: float
    targets: int

    def __call__(self, prior: Prior, scale: Tensor) -> Tensor:
        """log p(y | X), float64, differentiable in the prior's values and in ``scale``."""
        posterior = self.posterior.rescaled(prior.precision, scale)
        fit = -self.nll * scale - self.constant + 0.5 * self.targets * scale.log()
        complexity = posterior.log_determinant() - posterior.log_prior_determinant()
        return fit - 0.5 * (posterior.prior_quadratic(self.theta) + complexity)


def by_gradient(
    evidence: Evidence, prior: Prior, scale: Tensor, *, noise: bool, steps: int
) -> tuple[Prior, Tensor]:
    """The prior, and c if ``noise``, of largest evidence near the given ones, by L-BFGS on logs."""
    logs = {key: value.log().clone().requires_grad_() for key, value in prior.values.items()}
    log_scale = scale.log().clone().requires_grad_(noise)
    variables = [*logs.values(), *([log_scale] if noise else [])]
    optimizer = torch.optim.LBFGS(
        variables,
        max_iter=steps,
        tolerance_grad=1e-7,
        tolerance_change=1e-11,
        line_search_fn="strong_wolfe",
    )

    def values() -> dict[str, Tensor]:
        return {key: _bounded(log) for key, log in logs.items()}

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -evidence(prior.with_values(values()), _bounded(log_scale))
        value.backward()
        return value

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        return prior.with_values(values()), _bounded(log_scale)


def by_fixed_point(
    evidence: Evidence, prior: Prior, scale: Tensor, *, noise: bool, steps: int, tolerance: float
) -> tuple[Prior, Tensor, dict[str, float]]:
    r"""MacKay's fixed point, and γ of each group.

    :math:`\gamma_g = \sum_{p \in g} (1 - \lambda_g \sigma_p^2)`,
    :math:`\lambda_g = \gamma_g / \theta_g^T \theta_g` and, for Gaussian noise of variance
    :math:`1/\beta`, :math:`\beta = (N - \gamma) / \sum r^2`.
    """
    found: dict[str, float] = {}
    cautious = False
    for _ in range(steps):
        posterior = evidence.posterior.rescaled(prior.precision, scale)
        variance = posterior.variance()
        values: dict[str, Tensor] = {}
        for key, names in prior.groups.items():
            old = prior.values[key]
            gamma, square = torch.zeros_like(old), torch.zeros_like(old)
            for name in names:
                mask = posterior.uncertain(name)
                ones = old.new_ones(()) if mask is None else mask.to(old.dtype)
                share = ones * (1 - old * variance[name].double())
                theta = ones * evidence.theta[name].detach().double().square()
                gamma += share if old.dim() else share.sum()
                square += theta if old.dim() else theta.sum()
            determined = gamma.clamp_min(0)
            found[key] = float(determined.sum())
            values[key] = (determined / square.clamp_min(1e-300)).clamp(SMALLEST, LARGEST)
        gamma = sum(found.values())
        cautious = cautious or gamma > 0.5 * evidence.targets
        new_scale = _noise_step(evidence, scale, gamma, cautious) if noise else scale
        changes = [(values[key] / prior.values[key]).log().abs().max() for key in values]
        change = float(torch.stack([*changes, (new_scale / scale).log().abs()]).max())
        prior, scale = prior.with_values(values), new_scale
        if change < tolerance:
            break
    return prior, scale, found


def _noise_step(evidence: Evidence, scale: Tensor, gamma: float, cautious: bool) -> Tensor:
    """c of the next noise; nll is sum r² / 2 in units of the noise that H was measured with.

    Where the data seem to determine more parameters than half their number, β = (N - γ) / sum r²
    leaps or is negative. A step of expectation-maximisation, taken if ``cautious``, has the same
    fixed points.
    """
    if cautious:
        value = evidence.targets / (2 * evidence.nll + gamma / float(scale))
    else:
        value = (evidence.targets - gamma) / (2 * evidence.nll)
    return torch.full_like(scale, value).clamp(SMALLEST, LARGEST)


def _bounded(log: Tensor) -> Tensor:
    return log.clamp(math.log(SMALLEST), math.log(LARGEST)).exp()
