"""Models whose posterior is known: Bayesian linear regression and logistic regression."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def linear_model(features: int, weight: Tensor) -> nn.Module:
    model = nn.Linear(features, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(weight.reshape(1, -1))
    return model


@pytest.mark.parametrize("structure", ["full", "function_space", "blocks"])
def test_bayesian_linear_regression(structure: str) -> None:
    """Evidence log N(y | 0, X Xᵀ/α + σ² I), predictive N(m xᵀ, xᵀ S x): exact for linear models."""
    x = torch.randn(15, 4, dtype=torch.float64)
    y = x @ torch.randn(4, dtype=torch.float64) + 0.3 * torch.randn(15, dtype=torch.float64)
    alpha, variance = 0.8, 0.2
    s = torch.linalg.inv(x.T @ x / variance + alpha * torch.eye(4, dtype=torch.float64))
    model = linear_model(4, s @ x.T @ y / variance)
    la = lk.Laplace(model, lk.likelihoods.Gaussian(variance), structure, prior=alpha)
    la.fit((x, y.unsqueeze(1)))
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros(15, dtype=torch.float64),
        x @ x.T / alpha + variance * torch.eye(15, dtype=torch.float64),
    )
    close(la.log_evidence(), marginal.log_prob(y))
    new = torch.randn(6, 4, dtype=torch.float64)
    found = la.predict(new)
    close(found.mean[:, 0], new @ (s @ x.T @ y / variance))
    close(found.variance[:, 0], torch.einsum("np,pq,nq->n", new, s, new))
    wanted = torch.distributions.Normal(found.mean, (found.variance + variance).sqrt())
    z = torch.randn(6, 1, dtype=torch.float64)
    close(found.log_likelihood(z), wanted.log_prob(z))


@pytest.mark.parametrize("structure", ["full", "function_space"])
def test_logistic_regression(structure: str) -> None:
    """A = Σ σ(f) σ(-f) x xᵀ + α I, and the probit predictive σ(f / sqrt(1 + π/8 xᵀ A⁻¹ x))."""
    x = torch.randn(20, 3, dtype=torch.float64)
    y = (x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) > 0).double()
    w, alpha = torch.tensor([0.7, -1.1, 0.2], dtype=torch.float64), 0.5
    la = lk.Laplace(linear_model(3, w), "bernoulli", structure, prior=alpha)
    la.fit((x, y.unsqueeze(1)))
    p = (x @ w).sigmoid()
    a = (x.T * (p * (1 - p))) @ x + alpha * torch.eye(3, dtype=torch.float64)
    log_f = torch.nn.functional.logsigmoid((2 * y - 1) * (x @ w)).sum() - alpha / 2 * w @ w
    close(la.log_evidence(), log_f + 1.5 * math.log(alpha) - 0.5 * torch.logdet(a))
    new = torch.randn(6, 3, dtype=torch.float64)
    v = torch.einsum("np,pq,nq->n", new, torch.linalg.inv(a), new)
    found = la.predict(new)
    close(found.variance[:, 0], v)
    close(found.probabilities[:, 0], (new @ w / (1 + math.pi / 8 * v).sqrt()).sigmoid())


def test_tuned_evidence_is_that_of_the_marginal_likelihood() -> None:
    """At MacKay's fixed point of a retrained linear model both agree on α and the noise."""
    x = torch.randn(30, 4, dtype=torch.float64)
    y = x @ torch.randn(4, dtype=torch.float64) + 0.3 * torch.randn(30, dtype=torch.float64)
    logs = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logs], max_iter=200, line_search_fn="strong_wolfe")

    def marginal() -> Tensor:
        alpha, variance = logs.exp()
        covariance = x @ x.T / alpha + variance * torch.eye(30, dtype=torch.float64)
        zero = torch.zeros(30, dtype=torch.float64)
        return -torch.distributions.MultivariateNormal(zero, covariance).log_prob(y)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = marginal()
        value.backward()
        return value

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    alpha, variance = 1.0, 1.0
    for _ in range(60):
        s = torch.linalg.inv(x.T @ x / variance + alpha * torch.eye(4, dtype=torch.float64))
        model = linear_model(4, s @ x.T @ y / variance)
        la = lk.Laplace(model, lk.likelihoods.Gaussian(variance), "full", prior=alpha)
        la.fit((x, y.unsqueeze(1))).tune(by="mackay", steps=1)
        alpha = float(la.prior.values[""])
        likelihood = la.likelihood
        assert isinstance(likelihood, lk.likelihoods.Gaussian)
        variance = float(likelihood.variance)
    close(torch.tensor([alpha, variance]).log(), logs.detach().float(), 1e-4)
