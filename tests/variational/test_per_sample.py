"""What squares of single samples cannot be had of is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lapkernels as lk
from lapkernels.variational import VariationalLaplace
from tests.curvature.zoo.network import Net, parameter

TWICE = Net(lambda net, x: net.layer(net.layer(x).tanh()), layer=nn.Linear(3, 3))
CASES = {
    "twice": (TWICE, "layer.weight is used more than once"),
    "by hand": (Net(lambda net, x: x @ net.weight, weight=parameter(3, 3)), "weight enters"),
    "batch norm": (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "depend on each other"),
}


@pytest.mark.parametrize("name", CASES)
def test_refusals(name: str) -> None:
    model, message = CASES[name]
    q = VariationalLaplace(model, "gaussian", 4, curvature="samples")
    with pytest.raises(lk.Refused, match=message):
        q.loss(torch.randn(4, 3), torch.randn(4, 3))


def test_an_unused_parameter_is_named() -> None:
    model = Net(lambda net, x: net.used(x), used=nn.Linear(3, 3), spare=nn.Linear(3, 3))
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    q = VariationalLaplace(model, "gaussian", 4, curvature="samples")
    with pytest.raises(lk.Refused, match=r"spare\.bias was not used"):
        q.loss(x, y)
    assert VariationalLaplace(model, "gaussian", 4).loss(x, y).isfinite()
