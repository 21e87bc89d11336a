"""The factorised Gaussian: draws, divergence, training, state."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lapkernels.variational import VariationalInference, VariationalLaplace
from tests.variational.networks import dense, gaussian_kl, prepared


def posterior(**options: Any) -> VariationalInference:
    model = prepared(dense(3, 4, 2))
    return VariationalInference(model, "gaussian", 20, **options)


def test_spread_starts_three_below_the_prior() -> None:
    q = posterior(prior_std={"0": 0.5, "2.weight": 2.0, "2": 0.1})
    stds = {"0.weight": 0.5, "0.bias": 0.5, "2.weight": 2.0, "2.bias": 0.1}
    assert q.prior_std == stds
    for name, log_std in zip(q.names, q.log_std, strict=True):
        torch.testing.assert_close(log_std.data, torch.full_like(log_std, math.log(stds[name]) - 3))


def test_default_prior_is_that_of_the_fan_in() -> None:
    q = VariationalInference(nn.Conv2d(3, 4, 2), "gaussian", 1)
    assert q.prior_std == {"weight": 1 / math.sqrt(12), "bias": 1.0}


def test_divergence() -> None:
    q = posterior(prior_std={"0": 0.5, "2": 2.0})
    torch.testing.assert_close(q.complexity(), gaussian_kl(q), rtol=1e-12, atol=0)


def test_draws_have_the_mean_and_the_spread() -> None:
    """2000 draws of 26 parameters, five standard errors: one false alarm in 30 000 seeds."""
    q = posterior(generator=torch.Generator().manual_seed(0))
    count = 2000
    with torch.no_grad():
        draws = [torch.cat([w.flatten() for w in q.draw().values()]) for _ in range(count)]
    stacked = torch.stack(draws)
    mean = torch.cat([m.flatten() for m in q.means])
    std = torch.cat([s.exp().flatten() for s in q.log_std])
    assert ((stacked.mean(0) - mean).abs() < 5 * std / math.sqrt(count)).all()
    assert ((stacked.std(0) / std - 1).abs() < 5 / math.sqrt(2 * count)).all()


def test_loss_is_that_of_the_draw() -> None:
    q = posterior(generator=torch.Generator().manual_seed(0), beta=0.3)
    x, y = torch.randn(5, 3).double(), torch.randn(5, 2).double()
    loss = q.loss(x, y)
    q.generator = torch.Generator().manual_seed(0)
    f = torch.func.functional_call(q.model, q.draw(), x)
    expected = 0.5 * (f - y).square().sum() / 5 + 0.3 / 20 * gaussian_kl(q)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    gradients = torch.autograd.grad(loss, list(q.parameters()))
    for found, truth in zip(
        gradients, torch.autograd.grad(expected, list(q.parameters())), strict=True
    ):
        torch.testing.assert_close(found, truth)


def test_bound_of_batches_is_that_of_the_whole() -> None:
    model = prepared(dense(3, 4, 2))
    x, y = torch.randn(6, 3).double(), torch.randn(6, 2).double()
    q = VariationalLaplace(model, "gaussian", 6, curvature="hessian")
    whole = q.elbo([(x, y)])
    assert q.elbo([(x[:2], y[:2]), (x[2:], y[2:])]) == pytest.approx(whole, rel=1e-12)
    assert whole == pytest.approx(-6 * q.loss(x, y).item(), rel=1e-12)
    assert q.elbo([(x, y), (x, y)]) == pytest.approx(whole, rel=1e-12)


def test_groups_for_the_optimiser() -> None:
    q = posterior()
    means, spreads = q.param_groups(0.01, log_std_lr_multiplier=30)
    assert means["lr"] == 0.01 and spreads["lr"] == pytest.approx(0.3)
    assert {id(p) for p in q.parameters()} == {
        id(p) for group in (means, spreads) for p in group["params"]
    }
    optimizer = torch.optim.AdamW([means, spreads])
    assert all(group["weight_decay"] == 0 for group in optimizer.param_groups)


def test_state_goes_round() -> None:
    q = posterior(prior_std=0.3, beta=0.5)
    with torch.no_grad():
        for p in q.parameters():
            p.normal_()
    other = posterior()
    other.load_state_dict(q.state_dict())
    x = torch.randn(2, 3).double()
    torch.testing.assert_close(other(x), q(x))
    assert (other.prior_std, other.beta, other.data_size) == (q.prior_std, 0.5, 20)
    torch.testing.assert_close(other.complexity(), q.complexity())
    part = VariationalInference(prepared(dense(3, 4, 2)), "gaussian", 20, params=["0"])
    with pytest.raises((ValueError, RuntimeError), match=r"log_std|other parameters"):
        part.load_state_dict(q.state_dict())


def spread_out(options: dict[str, Any] | None = None) -> VariationalInference:
    """A posterior with a σ of its own for every entry."""
    q = posterior(**(options or {}))
    torch.manual_seed(3)
    with torch.no_grad():
        for log_std in q.log_std:
            log_std.add_(torch.rand_like(log_std))
    return q


def test_the_interface_of_laplace_has_the_same_gaussian() -> None:
    q = spread_out({"prior_std": {"0": 0.5, "2": 2.0}})
    x = torch.randn(4, 3).double()
    jacobian = torch.func.jacrev(lambda values: torch.func.functional_call(q.model, values, x))(
        dict(q.model.named_parameters())
    )
    variance = sum(
        (jacobian[name].square() * (2 * log_std).exp()).flatten(2).sum(-1)
        for name, log_std in zip(q.names, q.log_std, strict=True)
    )
    found = q.predict(x)
    torch.testing.assert_close(found.mean, q(x))
    torch.testing.assert_close(found.variance, variance)
    drawn = q.sample(3, torch.Generator().manual_seed(0))
    assert {name: tuple(w.shape) for name, w in drawn.items()} == {
        name: (3, *p.shape) for name, p in q.model.named_parameters()
    }
    for (name, w), log_std, mean in zip(drawn.items(), q.log_std, q.means, strict=True):
        many = q.sample(2000, torch.Generator().manual_seed(0))[name]
        assert ((many.std(0) / log_std.exp() - 1).abs() < 5 / math.sqrt(4000)).all()
        assert ((many.mean(0) - mean).abs() < 5 * log_std.exp() / math.sqrt(2000)).all()
        assert not w.requires_grad


def test_another_prior_for_what_was_learnt() -> None:
    """1/σ² = h + 1/s², so that with precision λ the variance is 1 / (1/σ² - 1/s² + λ)."""
    q = spread_out({"prior_std": 0.5})
    variance = q.laplace().set_prior(7.0).posterior.variance()
    for name, log_std in zip(q.names, q.log_std, strict=True):
        torch.testing.assert_close(variance[name], 1 / ((-2 * log_std).exp() - 4 + 7))


def test_files_go_round(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    q = spread_out()
    x = torch.randn(4, 3).double()
    q.save(tmp_path / "q.safetensors")
    again = VariationalInference.load(tmp_path / "q.safetensors", q.model)
    torch.testing.assert_close(again.predict(x).variance, q.predict(x).variance)
    with torch.no_grad():
        q.means[0].add_(1)
    with pytest.raises(ValueError, match="other parameter values"):
        VariationalInference.load(tmp_path / "q.safetensors", q.model)


def test_sampled_outputs_spread_with_the_posterior() -> None:
    q = posterior(generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 3).double()
    narrow = q.sampled_outputs(x, 50)
    assert narrow.shape == (50, 2, 2) and not narrow.requires_grad
    with torch.no_grad():
        for log_std in q.log_std:
            log_std += 2
    q.generator = torch.Generator().manual_seed(0)
    assert (q.sampled_outputs(x, 50).std(0) > 2 * narrow.std(0)).all()
