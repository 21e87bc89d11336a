"""The Hessian's diagonal against brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import oracle, refusals
from tests.curvature.zoo import NO_SECOND_DERIVATIVE, ZOO, Net, Network, params

NETWORKS = params("linear", "conv", "norm", "tied", "computed-weight", "recurrent")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def close(a: Tensor, b: Tensor, scale: float) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.parametrize(
    "network", [*NETWORKS[::2], pytest.param(ZOO["learned-scale"], id="scalar")]
)
def test_zoo(network: Network) -> None:
    model, x = network.make()
    y = oracle.labels(oracle.call(model, x, network.output).detach(), "gaussian")
    found = lk.hessian_diag(model, (x, y), output=network.output)
    matrix = oracle.hessian(model, x, y, output=network.output)
    assert list(found) == list(oracle.trainable(model))
    for name, value in oracle.diag(matrix, model).items():
        close(found[name], value, float(matrix.abs().max()))


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "poisson"])
@pytest.mark.parametrize("budget", [None, 1])
def test_likelihoods(likelihood: str, budget: int | None) -> None:
    model, x = ZOO["image-to-image"].make()
    y = oracle.labels(oracle.call(model, x).detach(), likelihood)
    found = lk.hessian_diag(model, (x, y), likelihood, memory_budget=budget)
    matrix = oracle.hessian(model, x, y, likelihood)
    for name, value in oracle.diag(matrix, model).items():
        close(found[name], value, float(matrix.abs().max()))


@pytest.mark.parametrize("case", refusals.params("handle")[:2])
def test_custom_gradients(case: refusals.Case) -> None:
    model, x = case.make()
    y = oracle.labels(oracle.call(model, x).detach(), "gaussian")
    with torch.no_grad():
        found = lk.hessian_diag(model, (x, y))
    matrix = oracle.hessian(model, x, y)
    for name, value in oracle.diag(matrix, model).items():
        close(found[name], value, float(matrix.abs().max()))


def test_linear_model_has_the_gauss_newton_diagonal() -> None:
    model, x = ZOO["linear"].make()
    y = oracle.labels(oracle.call(model, x).detach(), "gaussian")
    found, wanted = lk.hessian_diag(model, (x, y)), lk.diag(model, (x, y))
    for name in wanted:
        close(found[name], wanted[name], 1.0)


def test_merge() -> None:
    model, _ = ZOO["conv2d-stride"].make()
    x = torch.randn(7, 1, 5, 5, dtype=torch.float64)
    y = torch.randn(7, 2, dtype=torch.float64)
    whole = lk.hessian_diag(model, (x, y))
    parts = lk.hessian_diag(model, list(zip(x.split(1), y.split(1), strict=True)))
    halves = [lk.hessian_diag(model, (x[part], y[part])) for part in (slice(3), slice(3, 7))]
    merged = halves[0].merge(halves[1])
    assert whole.count == parts.count == merged.count == 7
    for name, value in whole.items():
        close(parts[name], value, float(whole.vector().abs().max()))
        close(merged[name], value, float(whole.vector().abs().max()))


def test_the_input_is_not_written_twice() -> None:
    model = nn.Sequential(nn.Linear(3, 2)).double()
    doubling = Net(lambda net, x: net.body(x.mul_(2.0)), body=model)
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    before = x.clone()
    found = lk.hessian_diag(doubling, (x, y))
    assert x.equal(before)
    wanted = lk.hessian_diag(model, (2 * before, y))
    close(found["body.0.weight"], wanted["0.weight"], 1.0)


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = ZOO["linear"].make()
    assert isinstance(x, Tensor)
    lk.hessian_diag(model, (x, torch.zeros(len(x), 4).double()), progress=True)
    assert "batch 0" in capsys.readouterr().err


def test_refusals() -> None:
    model, x = ZOO["linear"].make()
    assert isinstance(x, Tensor)
    with pytest.raises(ValueError, match="needs labels"):
        lk.hessian_diag(model, x)
    random = Net(lambda net, x: F.dropout(net.body(x), 0.5), body=model)
    with pytest.raises(lk.Refused, match="random"):
        lk.hessian_diag(random, (x, torch.zeros(len(x), 4).double()))
    still = Net(lambda net, x: net.body(x).detach(), body=model)
    with pytest.raises(lk.Refused, match="does not depend"):
        lk.hessian_diag(still, (x, torch.zeros(len(x), 4).double()))


def test_models_that_need_the_whole_batch_or_autograd() -> None:
    model, x = ZOO["linear"].make()
    assert isinstance(x, Tensor)
    data = x, torch.zeros(len(x), 4).double()
    fixed = Net(lambda net, x: net.body(x.reshape(data[0].shape)), body=model)
    inside = Net(lambda net, x: torch.func.grad(lambda f: f.sin().sum())(net.body(x)), body=model)
    for refused, word in (fixed, "half"), (inside, "torch.func"):
        with pytest.raises(lk.Refused, match=f"{word}.*Gauss-Newton"):
            lk.hessian_diag(refused, data)


@pytest.mark.parametrize("id", sorted(NO_SECOND_DERIVATIVE))
@pytest.mark.parametrize("function", [lk.diag, lk.full])
def test_ops_without_a_second_derivative(id: str, function: Any) -> None:
    model, x = ZOO[id].make()
    y = torch.zeros_like(oracle.call(model, x))
    with pytest.raises(lk.Refused, match="second derivative.*not implemented.*method='exact'"):
        function(model, (x, y), method="hessian")
