"""What squares of single samples cannot be had of is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.variational import VariationalLaplace


class Twice(nn.Module):
    """One layer, called two times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Both calls."""
        return self.layer(self.layer(x).tanh())


class ByHand(nn.Module):
    """A product that is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        """x times the weight."""
        return x @ self.weight


CASES = {
    "twice": (Twice(), "layer.weight is used more than once"),
    "by hand": (ByHand(), "weight enters"),
    "batch norm": (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "depend on each other"),
}


@pytest.mark.parametrize("name", CASES)
def test_refusals(name: str) -> None:
    model, message = CASES[name]
    q = VariationalLaplace(model, "gaussian", 4, curvature="samples")
    with pytest.raises(lk.Refused, match=message):
        q.loss(torch.randn(4, 3), torch.randn(4, 3))


def test_an_unused_parameter_is_named() -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "spare": nn.Linear(3, 3)})
    model.forward = lambda x: model["used"](x)
    q = VariationalLaplace(model, "gaussian", 4, curvature="samples")
    with pytest.raises(lk.Refused, match=r"spare\.bias was not used"):
        q.loss(torch.randn(4, 3), torch.randn(4, 3))
    assert (
        VariationalLaplace(model, "gaussian", 4)
        .loss(torch.randn(4, 3), torch.randn(4, 3))
        .isfinite()
    )
