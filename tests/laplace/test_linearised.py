"""The linearised model's optimum and evidence; invariance to the scale of normalised weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import oracle
from tests.laplace import dense
from tests.laplace.problems import Problem, classifier, regressor


def linear_features(problem: Problem) -> tuple[Tensor, Tensor]:
    """J [N, D, P] and f [N, D] of the training data."""
    j, f = oracle.flat_jacobians(problem.model, problem.x)
    return j.detach(), f.detach()


@pytest.mark.parametrize("case", ["diag", "kron", "full"])
def test_gaussian_optimum_solves_the_normal_equations(case: str) -> None:
    problem = regressor()
    structure, options = dense.CASES[case]
    likelihood = lk.likelihoods.Gaussian(0.3)
    la = lk.Laplace(problem.model, likelihood, structure, prior=0.7, **options)  # pyright: ignore[reportArgumentType]
    found = la.fit(problem.batches).find_optimum(problem.batches, tolerance=1e-10)
    j, f = linear_features(problem)
    features = j.flatten(0, 1)
    target = (problem.y - f).flatten() + features @ problem.theta
    a = features.T @ features / 0.3 + 0.7 * torch.eye(len(problem.theta), dtype=torch.float64)
    wanted = torch.linalg.solve(a, features.T @ target / 0.3)
    theta = torch.cat([value.flatten() for value in found.theta.values()])
    torch.testing.assert_close(theta, wanted, rtol=1e-7, atol=1e-7)
    residual = features @ wanted - target
    assert found.nll == pytest.approx(float(residual @ residual) / 0.6, rel=1e-7)


@pytest.mark.parametrize("case", ["diag", "full"])
@pytest.mark.parametrize("make", [regressor, classifier])
def test_stochastic_gradients_find_the_same_optimum(case: str, make: Any) -> None:
    problem = make()
    structure, options = dense.CASES[case]
    la = lk.Laplace(problem.model, problem.likelihood, structure, prior=3.0, **options)  # pyright: ignore[reportArgumentType]
    la.fit(problem.batches)
    wanted = la.find_optimum(problem.batches, tolerance=1e-10)
    la.optimum = None
    found = la.find_optimum(problem.batches, by="sgd", tolerance=1e-6, steps=400)
    assert 0 < found.gradient <= 1e-6
    for name, value in wanted.theta.items():
        torch.testing.assert_close(found.theta[name], value, rtol=1e-5, atol=1e-5)
    assert found.nll == pytest.approx(wanted.nll, rel=1e-5)
    with pytest.raises(lk.Refused, match="was not found"):
        la.optimum = None
        la.find_optimum(problem.batches, by="sgd", tolerance=1e-9, steps=1)
    with pytest.raises(ValueError, match="by='newton' must be one of"):
        la.find_optimum(problem.batches, by="newton")  # pyright: ignore[reportArgumentType]


def test_evidence_at_the_optimum_is_that_of_the_linear_model() -> None:
    """log N(target | 0, J Λ⁻¹ Jᵀ + σ²): exact, as the linearised model is linear and Gaussian."""
    problem = regressor()
    la = lk.Laplace(problem.model, lk.likelihoods.Gaussian(0.3), "full", prior=0.7)
    la.fit(problem.batches)
    trained = float(la.log_evidence())
    la.find_optimum(problem.batches, tolerance=1e-10)
    j, f = linear_features(problem)
    features = j.flatten(0, 1)
    target = (problem.y - f).flatten() + features @ problem.theta
    eye = torch.eye(len(target), dtype=torch.float64)
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros_like(target), features @ features.T / 0.7 + 0.3 * eye
    )
    torch.testing.assert_close(la.log_evidence(), marginal.log_prob(target), rtol=1e-9, atol=1e-9)
    assert float(la.log_evidence()) > trained
    la.set_prior(0.7)
    assert la.optimum is None and float(la.log_evidence()) == pytest.approx(trained)


def test_categorical_optimum_has_no_gradient() -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical", "kron", "exact", prior=0.5)
    found = la.fit(problem.batches).find_optimum(problem.batches, tolerance=1e-8)
    j, f = linear_features(problem)
    theta = torch.cat([value.flatten() for value in found.theta.values()]).requires_grad_()
    h = f + torch.einsum("ndp,p->nd", j, theta - problem.theta)
    nll = nn.functional.cross_entropy(h, problem.y, reduction="sum")
    (gradient,) = torch.autograd.grad(nll + 0.25 * theta @ theta, theta)
    start = nn.functional.cross_entropy(f, problem.y, reduction="sum")
    assert float(gradient.norm()) < 1e-6
    assert found.nll == pytest.approx(float(nll.detach()), rel=1e-9)
    assert float(nll.detach()) < float(start) + 0.25 * float(problem.theta @ problem.theta)


def normalised_model(*stream: nn.Module) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A hidden layer in front of a norm with next to no epsilon."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 4), *stream, nn.LayerNorm(4, eps=1e-14), nn.Tanh(), nn.Linear(4, 1)
    ).double()  # fmt: skip
    x = torch.randn(30, 2, dtype=torch.float64)
    y = (x[:, :1] * 2).sin() + 0.1 * torch.randn(30, 1, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return model, x, y


class Branch(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def scaled_by(k: float, model: nn.Module, names: Iterable[str]) -> nn.Module:
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name in names:
            model.get_parameter(name).mul_(k)
    return model


def tuned_deviation(
    model: nn.Module, data: Any, prior: Any, new: Tensor, tolerance: float = 1e-5
) -> Tensor:
    la = lk.Laplace(model, lk.likelihoods.Gaussian(0.01), "full", prior=prior).fit(data)
    la.tune(data, by="linearised", noise=False, steps=200, tolerance=tolerance)
    return la.predict(new).std


@pytest.mark.parametrize("residual", [False, True])
def test_predictions_do_not_depend_on_the_scale_of_normalised_weights(residual: bool) -> None:
    """Proposition 3: one precision for each normalised group, chosen at θ★."""
    torch.manual_seed(1)
    branch = Branch(nn.LayerNorm(4, eps=1e-14), nn.Tanh(), nn.Linear(4, 4))
    model, x, y = normalised_model(*([branch] if residual else []))
    new = torch.linspace(-3, 3, 7, dtype=torch.float64).unsqueeze(1).expand(-1, 2)
    own = {name for name, _ in model.named_parameters() if name.startswith(("0.", "1.layers.2."))}
    other = scaled_by(4.0, model, own if residual else ("0.weight", "0.bias"))
    torch.testing.assert_close(other(new), model(new), rtol=1e-9, atol=1e-9)
    groups = [lk.Prior.normalised(m, x) for m in (model, other)]
    assert list(groups[0].groups) == ["0.weight and 3 more" if residual else "0", "rest"]
    a, b = (
        tuned_deviation(m, [(x, y)], p, new) for m, p in zip((model, other), groups, strict=True)
    )
    torch.testing.assert_close(a, b, rtol=1e-3, atol=0)
    # With a single precision the scale is felt.
    a, b = (tuned_deviation(m, [(x, y)], 1.0, new, 1e-3) for m in (model, other))
    assert float((a / b - 1).abs().max()) > 0.01


def test_refusals() -> None:
    problem = regressor()
    la = lk.Laplace(problem.model, "gaussian", "full").fit(problem.batches)
    with pytest.raises(ValueError, match="needs data"):
        la.tune(by="linearised")
    with pytest.raises(ValueError, match="needs labels"):
        la.find_optimum(problem.x)
    with pytest.raises(lk.Refused, match="was not found"):
        lk.Laplace(problem.model, "poisson", "diag").fit(
            (problem.x, problem.y.abs().round())
        ).find_optimum((problem.x, problem.y.abs().round()), tolerance=1e-12, steps=1)
    part = lk.Laplace(problem.model, "gaussian", "subnetwork", size=3).fit(problem.batches)
    with pytest.raises(ValueError, match="subnetwork"):
        part.find_optimum(problem.batches)
