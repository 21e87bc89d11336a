"""Products with the Gauss-Newton matrix; test_support has those with the exact one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lapkernels as lk
from tests.curvature import oracle
from tests.curvature.check import close, made
from tests.curvature.zoo import ZOO


def test_products_by_name_over_batches() -> None:
    model, x, y = made(ZOO["conv2d-stride"])
    assert isinstance(x, Tensor)
    named = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    flat = torch.cat([v.flatten() for v in named.values()])
    batches = list(zip(x.split(1), y.split(1), strict=True))
    found = lk.ggn_product(model, batches, named)
    assert isinstance(found, dict)
    wanted = oracle.ggn(model, x, y) @ flat
    close(torch.cat([found[name].flatten() for name in named]), wanted)
    some = lk.ggn_product(model, batches, {"3.bias": torch.ones(2).double()}, params="3.bias")
    assert isinstance(some, dict)
    close(some["3.bias"], torch.full((2,), 3.0, dtype=torch.float64))


def test_refuses_ops_without_derivatives_of_their_backward() -> None:
    model, x, y = made(ZOO["prototypes"])
    with pytest.raises(lk.Refused, match="neither by differentiating twice .*cdist_backward"):
        lk.ggn_product(model, (x, y), torch.ones(14, dtype=torch.float64))


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_empirical_products(likelihood: str) -> None:
    model, x, y = made(ZOO["conv2d-stride"], likelihood)
    matrix = oracle.empirical(model, x, y, likelihood)
    v = torch.randn(len(matrix), 2, dtype=torch.float64)
    found = lk.ggn_product(model, (x, y), v, likelihood, "empirical")
    assert isinstance(found, Tensor)
    close(found, matrix @ v)


def test_sampled_products_are_unbiased() -> None:
    """With seed 0 the mean of 400 draws is within six standard errors, entry by entry.

    A right estimate fails for one seed in 10^6 (16 entries at 2e-9 each, and what is not normal).
    """
    model, x, y = made(ZOO["linear"], "categorical")
    matrix = oracle.ggn(model, x, y, "categorical")
    v = torch.randn(len(matrix), dtype=torch.float64)
    draws = torch.Generator().manual_seed(0)

    def estimate() -> Tensor:
        found = lk.ggn_product(model, (x, y), v, "categorical", "mc", samples=4, generator=draws)
        assert isinstance(found, Tensor)
        return found

    found = torch.stack([estimate() for _ in range(400)])
    error = (found.mean(0) - matrix @ v).abs()
    assert bool((error <= 6 * found.std(0) / 20).all())
    assert bool((found.std(0) > 0).any())


def test_methods_are_checked() -> None:
    model, x, y = made(ZOO["linear"])
    v = torch.ones(16, dtype=torch.float64)
    method: Any = "approx"
    with pytest.raises(ValueError, match="method='approx' must be one of"):
        lk.ggn_product(model, x, v, method=method)
    with pytest.raises(ValueError, match="samples=0 must be positive"):
        lk.ggn_product(model, x, v, method="mc", samples=0)
    with pytest.raises(ValueError, match="'empirical' needs labels"):
        lk.ggn_product(model, x, v, method="empirical")
