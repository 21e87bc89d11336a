"""The same numbers as laplace-torch on what both can do, in float64."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import lapkernels as lk
from tests.laplace.problems import Problem, regressor

laplace = pytest.importorskip(
    "laplace", reason="laplace-torch is not installed: pip install --no-deps laplace-torch"
)


def classifier() -> Problem:
    """Layers that laplace-torch's Kronecker backend knows."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 3, 2, stride=2), torch.nn.Tanh(), torch.nn.Flatten()),
        torch.nn.Linear(12, 3),
    )
    x = torch.randn(14, 1, 4, 4, dtype=torch.float64)
    y = torch.randint(3, (14,))
    return Problem(model.double().eval(), x, y, "categorical", torch.randn_like(x[:5]))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("subset", ["all", "last_layer"])
def test_equal(structure: str, make: Any, subset: str) -> None:
    problem = make()
    task = "classification" if problem.likelihood == "categorical" else "regression"
    loader = DataLoader(TensorDataset(problem.x, problem.y), batch_size=5)
    options: dict[str, Any] = {"sigma_noise": 0.7} if task == "regression" else {}
    theirs = laplace.Laplace(problem.model, task, subset, structure, prior_precision=0.3, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(loader)
    likelihood = lk.likelihoods.Gaussian(0.49) if task == "regression" else task
    last = list(dict(problem.model.named_children()))[-1]
    params = None if subset == "all" else last
    ours = lk.Laplace(problem.model, likelihood, structure, "exact", params, prior=0.3).fit(loader)
    close(ours.log_evidence(), theirs.log_marginal_likelihood())
    found = ours.predict(
        problem.new, joint=True, link="bridge" if task != "regression" else "probit"
    )
    if task == "regression":
        mean, covariance = theirs(problem.new)
    else:
        mean, covariance = theirs._glm_predictive_distribution(problem.new)
        close(ours.predict(problem.new).probabilities, theirs(problem.new, link_approx="probit"))
        close(found.probabilities, theirs(problem.new, link_approx="bridge"))
    assert found.covariance is not None
    close(found.mean, mean)
    close(found.covariance, covariance)
