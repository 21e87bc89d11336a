"""KL divergence of a diagonal Gaussian from its prior, against torch.distributions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Normal, kl_divergence

from lapkernels.ops import gaussian_kl
from tests.ops.compare import assert_within
from tests.ops.lists import count, many

PRIOR = 0.7
# Roundings of one term: the exponential, its argument, squares, quotient and logarithm.
TERM = 8


def _brute(mean: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    zero, prior_sigma = torch.tensor([0.0, PRIOR], dtype=torch.float64)
    prior = Normal(zero, prior_sigma)
    terms = [
        kl_divergence(Normal(mu.double(), ls.double().exp()), prior).sum()
        for mu, ls in zip(mean, log_sigma, strict=True)
    ]
    return torch.stack(terms).sum()


@pytest.mark.usefixtures("every_backend")
def test_equals_brute_force(dtype: torch.dtype) -> None:
    mean, log_sigma = many(dtype, 0), many(dtype, 1)
    found = gaussian_kl(mean, log_sigma, PRIOR)
    assert found.shape == () and found.dtype == dtype
    parts = [
        (2 * ls.double()).exp() / PRIOR**2 + (mu.double() / PRIOR).square() + 2 * ls.double().abs()
        for mu, ls in zip(mean, log_sigma, strict=True)
    ]
    magnitude = torch.stack([part.sum() for part in parts]).sum() + 2 * count()
    tolerance = torch.finfo(dtype).eps * (count() + TERM) * magnitude
    assert_within(found, _brute(mean, log_sigma), tolerance)


@pytest.mark.usefixtures("every_backend")
def test_float32_is_accurate_over_many_terms() -> None:
    """Sums over a network's parameters must not drift: far below one rounding a term."""
    mean, log_sigma = [torch.randn(400_000)], [torch.randn(400_000) - 3]
    wanted = _brute(mean, log_sigma)
    assert abs(float(gaussian_kl(mean, log_sigma, PRIOR)) - wanted) < 1e-5 * wanted


@pytest.mark.usefixtures("every_backend")
def test_is_zero_at_the_prior_and_positive_elsewhere() -> None:
    mean = [torch.zeros(5, dtype=torch.float64)]
    at_prior = [torch.full((5,), PRIOR, dtype=torch.float64).log()]
    assert abs(float(gaussian_kl(mean, at_prior, PRIOR))) < 1e-14
    assert gaussian_kl(mean, [at_prior[0] + 0.1], PRIOR) > 0
    assert gaussian_kl([mean[0] + 0.1], at_prior, PRIOR) > 0


@pytest.mark.usefixtures("every_backend")
def test_gradient() -> None:
    mean = [torch.randn(3, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)]
    log_sigma = [torch.randn_like(mu) for mu in mean]
    inputs = [t.requires_grad_() for t in (*mean, *log_sigma)]
    run = lambda a, b, c, d: gaussian_kl([a, b], [c, d], PRIOR)  # noqa: E731
    assert gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.usefixtures("every_backend")
def test_bad_input() -> None:
    mean = [torch.ones(3), torch.ones(2)]
    for prior in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="prior_sigma"):
            gaussian_kl(mean, mean, prior)
    with pytest.raises(ValueError, match="log_sigma has 1 entries"):
        gaussian_kl(mean, mean[:1], PRIOR)
    with pytest.raises(ValueError, match=r"log_sigma\[1\]"):
        gaussian_kl(mean, [mean[0], mean[0]], PRIOR)
    with pytest.raises(TypeError, match=r"log_sigma\[1\]"):
        gaussian_kl(mean, [mean[0], mean[1].double()], PRIOR)
    with pytest.raises(TypeError, match=r"mean"):
        gaussian_kl([mean[0].long()], [mean[0].long()], PRIOR)
    with pytest.raises(ValueError, match="mean"):
        gaussian_kl([], [], PRIOR)
