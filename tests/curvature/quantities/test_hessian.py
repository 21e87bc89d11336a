"""The Hessian's diagonal: what is refused, and what is left alone; test_support has its values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import oracle, refusals
from tests.curvature.check import close
from tests.curvature.zoo import NO_SECOND_DERIVATIVE, ZOO, Net


@pytest.mark.parametrize("case", refusals.params("handle")[:2])
def test_custom_gradients(case: refusals.Case) -> None:
    model, x = case.make()
    y = oracle.labels(oracle.call(model, x).detach(), "gaussian")
    with torch.no_grad():
        found = lk.hessian_diag(model, (x, y))
    matrix = oracle.hessian(model, x, y)
    for name, value in oracle.diag(matrix, model).items():
        close(found[name], value)


def test_the_input_is_not_written_twice() -> None:
    model = nn.Sequential(nn.Linear(3, 2)).double()
    doubling = Net(lambda net, x: net.body(x.mul_(2.0)), body=model)
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    before = x.clone()
    found = lk.hessian_diag(doubling, (x, y))
    assert x.equal(before)
    wanted = lk.hessian_diag(model, (2 * before, y))
    close(found["body.0.weight"], wanted["0.weight"])


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
