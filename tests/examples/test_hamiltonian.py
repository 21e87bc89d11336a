"""Draws of networks against the closed form of a linear one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from examples.hamiltonian import NOISE, cubic, hamiltonian

pytest.importorskip("numpyro", reason="numpyro is not installed: pip install numpyro")


def test_linear_model_has_the_posterior_of_bayesian_linear_regression() -> None:
    x, y = cubic(30)
    model = nn.Sequential(nn.Linear(1, 1)).double()
    new = torch.tensor([[-6.0], [0.0], [5.0]], dtype=torch.float64)
    found = hamiltonian(model, x, y, new, precision=0.2, samples=1000, warmup=300)

    design, at = (torch.cat([t, torch.ones_like(t)], 1) for t in (x, new))
    a = design.T @ design / NOISE**2 + 0.2 * torch.eye(2, dtype=torch.float64)
    mean = (at @ torch.linalg.solve(a, design.T @ y / NOISE**2))[:, 0]
    std = (at @ torch.linalg.solve(a, at.T)).diagonal().sqrt()
    # Five standard errors of a mean and of a standard deviation of that many draws.
    assert float(((found.mean - mean).abs() / std * found.effective.sqrt()).max()) < 5
    assert float(((found.std / std - 1).abs() * (2 * found.effective).sqrt()).max()) < 5
    assert float(found.split_r_hat.max()) < 1.05


def test_unknown_layer_is_named() -> None:
    x, y = cubic(3)
    with pytest.raises(TypeError, match="Dropout is not among"):
        hamiltonian(nn.Sequential(nn.Dropout()), x, y, x, precision=1.0)
