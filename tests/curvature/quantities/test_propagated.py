"""Variances passed forward: the transpose of the approximate diagonal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature.zoo import ZOO, Net


def variances(model: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(p.shape, generator=generator, dtype=torch.float64).to(p.dtype) + 0.1
        for name, p in model.named_parameters()
    }


def test_another_precision_inside() -> None:
    layers = {"first": nn.Linear(3, 4).double(), "last": nn.Linear(4, 2)}
    model = Net(lambda net, x: net.last(net.first(x).tanh().float()), **layers)
    x = torch.randn(5, 3, dtype=torch.float64)
    found = lk.propagated_variance(model, x, variances(model))
    assert found.dtype == torch.float32
    model = Net(lambda net, x: net.last(net.first(x).tanh()), **layers).double()
    wanted = lk.propagated_variance(model, x, variances(model))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)


def test_large_batches_go_in_parts() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3)).double()
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    x = torch.randn(9, 1, 128, 128, dtype=torch.float64)
    with lk.unchecked():
        found = lk.propagated_variance(model, x, variances(model))
    assert sizes == [2, 2, 2, 2, 3]
    one_by_one = [lk.propagated_variance(model, one, variances(model)) for one in x.split(1)]
    torch.testing.assert_close(found, torch.cat(one_by_one))


def test_unknown_parameters_and_models_without_rules_are_refused() -> None:
    model, x = nn.Linear(2, 2), torch.randn(3, 2)
    with pytest.raises(ValueError, match="no parameters of the model"):
        lk.propagated_variance(model, x, {"other": torch.ones(2)})
    model, x = ZOO["shape-fourier"].make()
    with pytest.raises(lk.Refused, match="complex.*no variance can be passed; predictive_variance"):
        lk.propagated_variance(model, x, variances(model))
