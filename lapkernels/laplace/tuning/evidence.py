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

from lapkernels.curvature import Refused
from lapkernels.laplace.posterior import Posterior
from lapkernels.laplace.prior import Prior

# Precisions stay within these bounds, where evidence would push one to zero or infinity.
SMALLEST, LARGEST = 1e-10, 1e10
# At an optimum the derivative is at most this share of its larger term.
FAR = 0.1


@dataclass(frozen=True)
class Evidence:
    """The log evidence as a function of the prior and of c.

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

    def sums(self, prior: Prior, entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums of entries by name over the uncertain parameters of each precision, float64."""
        found: dict[str, Tensor] = {}
        for key, names in prior.groups.items():
            found[key] = torch.zeros_like(prior.values[key])
            for name in names:
                mask, value = self.posterior.uncertain(name), entries[name].detach().double()
                value = value if mask is None else value * mask
                found[key] += value if found[key].dim() else value.sum()
        return found

    def squares(self, prior: Prior) -> dict[str, Tensor]:
        """θᵀθ of each precision's parameters; raises if it is zero.

        Then the evidence grows with the precision without bound.
        """
        theta = {name: self.theta[name].detach().double() for name in prior.precision}
        found = self.sums(prior, {name: value.square() for name, value in theta.items()})
        for key, counts in self.counts(prior).items():
            if bool(counts.any()) and not bool(found[key].any()):
                raise Refused(
                    f"{_parameters(prior, key)} are zero, so that the evidence grows with their "
                    "prior precision without end: choose it by tune(held_out) or "
                    "set_prior, or train the model first"
                )
        return found

    def unsettled(self, prior: Prior, scale: Tensor, noise: bool) -> list[str]:
        """Which precisions are not at an optimum, but diverge to zero, infinity or a bound.

        The derivative in the logarithm of a precision is (γ - λ θᵀθ) / 2. Relative to the larger of
        the two terms it is small at an optimum only, however small both have become.
        """
        logs = {key: value.log().requires_grad_() for key, value in prior.values.items()}
        log_scale = scale.log().requires_grad_()
        with torch.enable_grad():
            values = {key: log.exp() for key, log in logs.items()}
            value = self(prior.with_values(values), log_scale.exp())
        *slopes, of_scale = torch.autograd.grad(value, [*logs.values(), log_scale])
        found: list[str] = []
        for (key, square), slope in zip(self.squares(prior).items(), slopes, strict=True):
            value = prior.values[key]
            quadratic, gamma = value * square, value * square + 2 * slope
            terms = torch.maximum(gamma, quadratic)
            far = ((gamma - quadratic).abs() > FAR * terms) | _at_bound(value)
            if bool(far.any()):
                entries = f"{int(far.sum())} of {far.numel()} entries of " if far.dim() else ""
                found.append(
                    f"the prior precision of {entries}{_parameters(prior, key)} "
                    f"({float(value[far].max()):.1e})"
                )
        if noise and (2 * abs(float(of_scale)) > FAR * self.targets or bool(_at_bound(scale))):
            found.append("the variance of the noise")
        return found

    def counts(self, prior: Prior) -> dict[str, Tensor]:
        """The number of uncertain entries."""
        shapes = self.posterior.shapes
        ones = {n: self.theta[n].new_ones(()).expand(shapes[n]) for n in prior.precision}
        return self.sums(prior, ones)


def by_gradient(
    evidence: Evidence, prior: Prior, scale: Tensor, *, noise: bool, steps: int
) -> tuple[Prior, Tensor]:
    """The prior, and c if ``noise``, of largest evidence near the given ones, by L-BFGS on logs."""
    evidence.squares(prior)
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
    squares, counts = evidence.squares(prior), evidence.counts(prior)
    cautious = False
    for _ in range(steps):
        precision = prior.precision
        variance = evidence.posterior.rescaled(precision, scale).variance()
        shares = {name: 1 - precision[name] * v.double() for name, v in variance.items()}
        values: dict[str, Tensor] = {}
        for key, total in evidence.sums(prior, shares).items():
            determined, old = total.clamp_min(0), prior.values[key]
            found[key] = float(determined.sum())
            value = (determined / squares[key].clamp_min(1e-300)).clamp(SMALLEST, LARGEST)
            values[key] = value.where(counts[key] > 0, old)
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
        value = (evidence.targets - gamma) / max(2 * evidence.nll, 1e-300)
    return torch.full_like(scale, value).clamp(SMALLEST, LARGEST)


def _bounded(log: Tensor) -> Tensor:
    return log.clamp(math.log(SMALLEST), math.log(LARGEST)).exp()


def _at_bound(value: Tensor) -> Tensor:
    return (value < 1.001 * SMALLEST) | (value > 0.999 * LARGEST)


def _parameters(prior: Prior, key: str) -> str:
    first, *others = prior.groups[key]
    return f"{first} and {len(others)} more" if others else first
