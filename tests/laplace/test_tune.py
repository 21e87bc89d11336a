"""Tuning of prior and noise: stationary points of the evidence, and validation."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.laplace import dense
from tests.laplace.problems import PROBLEMS, classifier, regressor

CASES = [
    *((case, "layer") for case in ("diag", "kron", "ekfac", "neuron", "full", "function_space")),
    ("full", 1.0),
    ("diag", "parameter"),
]


def gradient(la: lk.Laplace) -> Tensor:
    """Of the evidence in the logarithms of the prior's values inside their bounds, and of c."""
    logs = {key: value.log().requires_grad_() for key, value in la.prior.values.items()}
    scale = la.scale.log().requires_grad_()
    values = {key: log.exp() for key, log in logs.items()}
    la._evidence()(la.prior.with_values(values), scale.exp()).backward()
    found = []
    for log in logs.values():
        assert log.grad is not None
        found.append(log.grad[log < 23].flatten())
    if la.likelihood is not la.fitted_likelihood:
        assert scale.grad is not None
        found.append(scale.grad.reshape(1))
    return torch.cat(found)


@pytest.mark.parametrize("make", PROBLEMS)
@pytest.mark.parametrize("by", ["evidence", "mackay"])
@pytest.mark.parametrize(("case", "prior"), CASES, ids=str)
def test_ends_where_the_gradient_is_zero(case: str, prior: Any, by: str, make: str) -> None:
    problem = PROBLEMS[make](40)
    structure, options = dense.CASES[case]
    la = lk.Laplace(problem.model, problem.likelihood, structure, prior=prior, **options)  # pyright: ignore[reportArgumentType]
    la.fit(problem.batches)
    before = float(la.log_evidence())
    la.tune(by=by, steps=1000, tolerance=1e-9)
    assert float(la.log_evidence()) > before
    assert float(gradient(la).abs().max()) < 1e-4


@pytest.mark.parametrize("by", ["evidence", "mackay"])
def test_one_precision_for_each_entry(by: str) -> None:
    problem = regressor(40)
    la = lk.Laplace(problem.model, "gaussian", "diag", prior="entry").fit(problem.batches)
    shared = lk.Laplace(problem.model, "gaussian", "diag").fit(problem.batches).tune(by="evidence")
    la.tune(by=by, steps=100)
    assert float(la.log_evidence()) > float(shared.log_evidence())
    small = la.prior.values["0.weight"] < 1e3
    assert bool(small.any()) and float(gradient(la).abs().max()) < 0.1


def test_noise() -> None:
    problem = regressor()
    la = lk.Laplace(problem.model, "gaussian", "full").fit(problem.batches)
    la.tune(by="evidence", noise=False)
    assert isinstance(la.likelihood, lk.likelihoods.Gaussian)
    assert float(la.likelihood.variance) == 1
    la.tune(by="evidence")
    variance = float(la.likelihood.variance)
    wanted = dense.log_evidence(
        problem, problem.ggn(), dense.prior_diagonal(problem, la.prior.precision), variance
    )
    torch.testing.assert_close(la.log_evidence(), wanted, rtol=1e-9, atol=1e-9)
    noisy = lk.Laplace(problem.model, lk.likelihoods.Gaussian(variance), "full", prior=la.prior)
    noisy.fit(problem.batches)
    torch.testing.assert_close(noisy.log_evidence(), la.log_evidence())
    torch.testing.assert_close(
        noisy.predict(problem.new).variance, la.predict(problem.new).variance
    )
    torch.testing.assert_close(la.predict(problem.new).noise[0, 0].item(), variance)


def test_effective_number_of_parameters() -> None:
    """γ = Σ λ_i / (λ_i + α) over the eigenvalues of H."""
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical", "full", prior=0.4).fit(problem.batches)
    values = torch.linalg.eigvalsh(problem.ggn())
    found = la.posterior.effective(la.prior.groups)
    assert found[""] == pytest.approx(float((values / (values + 0.4)).sum()), rel=1e-9)


@pytest.mark.parametrize("by", ["evidence", "mackay"])
@pytest.mark.parametrize("structure", ["diag", "kron", "full", "subnetwork"])
def test_parameters_that_are_zero_have_no_optimum(structure: str, by: str) -> None:
    problem = classifier()
    problem.model.get_parameter("3.bias").data.zero_()
    options: dict[str, Any] = {"size": 60} if structure == "subnetwork" else {}
    la = lk.Laplace(problem.model, "categorical", structure, prior="parameter", **options)
    la.fit(problem.batches)
    with pytest.raises(lk.Refused, match=r"^3.bias are zero.*tune\(held_out\)"):
        la.tune(by=by)
    assert all(float(value) == 1 for value in la.prior.values.values())
    la.set_prior("layer").tune(by=by)
    for parameter in problem.model.parameters():
        parameter.data.zero_()
    la = lk.Laplace(problem.model, "categorical", "diag").fit(problem.batches)
    with pytest.raises(lk.Refused, match="0.weight and 6 more are zero"):
        la.tune(by=by)
    la.tune(problem.batches)


@pytest.mark.parametrize("by", ["evidence", "mackay"])
def test_precisions_without_an_optimum_are_told(by: str) -> None:
    """Weights that data say nothing of, and data without noise."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    y = model(x).detach() + 0.1 * torch.randn(20, 2, dtype=torch.float64)
    model.get_parameter("0.weight").data[0] = 0.1
    model.get_parameter("0.bias").data[0] = -9.0
    la = lk.Laplace(model, "gaussian", "diag", prior="entry").fit((x, y))
    with pytest.warns(UserWarning, match=r"no optimum .* [3-9] of 12 entries of 0.weight"):
        la.tune(by=by)
    exact = lk.Laplace(model, "gaussian", "full").fit((x, model(x).detach()))
    with pytest.warns(UserWarning, match="the variance of the noise"):
        exact.tune(by=by)


@pytest.mark.parametrize("by", ["evidence", "mackay"])
def test_groups_without_an_uncertain_entry_keep_their_precision(by: str) -> None:
    problem = classifier()
    la = lk.Laplace(
        problem.model, "categorical", "subnetwork", prior="layer", entries={"6.weight": [0, 5, 7]}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la.fit(problem.batches).tune(by=by, noise=False)
    found = {key: float(value) for key, value in la.prior.values.items()}
    assert found.pop("6") != 1 and all(value == pytest.approx(1) for value in found.values())


BAD_LABELS = [
    (lambda y: y + 3, ValueError, r"y\[\d+\] = .*: labels 0 to 2 or ignore_index"),
    (lambda y: y > 0, TypeError, "y has dtype torch.bool: integer labels"),
    (lambda y: y.unsqueeze(1), ValueError, "y has shape .*class labels"),
    (lambda y: y.tolist(), TypeError, "y is a list"),
    (lambda y: None, ValueError, "need labels"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_LABELS)
def test_bad_labels(change: Any, error: type[Exception], message: str) -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical").fit(problem.batches)
    with pytest.raises(error, match=message):
        la.tune([(problem.x, change(problem.y))])


def test_refusals() -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical", "diag")
    with pytest.raises(RuntimeError, match=r"call fit\(data\) first"):
        la.log_evidence()
    la.fit(problem.x)
    with pytest.raises(RuntimeError, match="needs labels"):
        la.tune(by="evidence")
    la.fit(problem.batches)
    with pytest.raises(ValueError, match="no noise to tune"):
        la.tune(noise=True)
    with pytest.raises(ValueError, match="by='guess' must be one of"):
        la.tune(by="guess")
    with pytest.raises(ValueError, match="needs data"):
        la.tune(by="held_out")
    with pytest.raises(ValueError, match="needs data"):
        la.tune("linearised")
    assert repr(la.tune("mackay").prior) == repr(la.tune(by="mackay").prior)
    other = regressor()
    empirical = lk.Laplace(other.model, "gaussian", "diag", "empirical").fit(other.batches)
    with pytest.raises(ValueError, match="does not scale with the noise"):
        empirical.tune(by="cautious")
    empirical.tune(by="cautious", noise=False)
