"""Squared gradients weighted by posterior variances."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from lapkernels.ops import squared_gradient_sum
from tests.ops.compare import assert_same, assert_within
from tests.ops.lists import count, many

# Roundings of one term: the exponential, its argument, the square and the product.
TERM = 6


@pytest.mark.usefixtures("every_backend")
def test_equals_brute_force(dtype: torch.dtype) -> None:
    gradient, log_sigma = many(dtype, 2), many(dtype, 3)
    found = squared_gradient_sum(gradient, log_sigma)
    assert found.shape == () and found.dtype == dtype
    wanted = torch.zeros((), dtype=torch.float64)
    for g, ls in zip(gradient, log_sigma, strict=True):
        wanted += ((ls.double().exp() * g.double()) ** 2).sum()
    # Every term is positive, so the result is its own magnitude.
    assert_within(found, wanted, torch.finfo(dtype).eps * (count() + TERM) * wanted)


@pytest.mark.usefixtures("every_backend")
def test_is_exact_on_integers(dtype: torch.dtype) -> None:
    gradient = [(g * 2).round() for g in many(dtype, 4)]
    unit = [torch.zeros_like(g) for g in gradient]
    wanted = torch.stack([g.double().square().sum() for g in gradient]).sum()
    assert_same(squared_gradient_sum(gradient, unit), wanted)


@pytest.mark.usefixtures("every_backend")
def test_gradient() -> None:
    lists = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 1, 3, 1)]
    run = lambda a, b, c, d: squared_gradient_sum([a, b], [c, d])  # noqa: E731
    assert gradcheck(run, lists)
    assert gradgradcheck(run, lists)


@pytest.mark.usefixtures("every_backend")
def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"log_sigma\[0\]"):
        squared_gradient_sum([torch.ones(3)], [torch.ones(4)])
    with pytest.raises(ValueError, match="log_sigma has 2"):
        squared_gradient_sum([torch.ones(3)], [torch.ones(3)] * 2)
    with pytest.raises(ValueError, match="meta"):
        squared_gradient_sum([torch.ones(3)], [torch.ones(3, device="meta")])
    with pytest.raises(ValueError, match="gradient"):
        squared_gradient_sum([], [])
