"""Samples of a Gaussian with diagonal precision."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from lapkernels.ops import sample_from_precision
from tests.ops.compare import assert_within
from tests.ops.lists import many


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.usefixtures("every_backend")
def test_equals_the_formula_on_the_same_noise(dtype: torch.dtype) -> None:
    mean, precision = many(dtype, 9), many(dtype, 10, positive=True)
    kept = [t.clone() for t in (*mean, *precision)]
    found = sample_from_precision(
        mean, precision, prior_precision=0.5, scale=2.0, generator=_seeded(0)
    )
    generator = _seeded(0)
    eps = torch.finfo(dtype).eps
    for value, mu, h in zip(found, mean, precision, strict=True):
        assert value.dtype == dtype
        noise = torch.randn(mu.shape, dtype=dtype, generator=generator).double()
        spread = 2.0 * noise / (h.double() + 0.5).sqrt()
        # The sum under the root, the root, its inverse, two products and the last sum.
        tolerance = 6 * eps * (mu.double().abs() + spread.abs())
        assert_within(value, mu.double() + spread, tolerance, empty=not mu.numel())
    assert all(torch.equal(a, b) for a, b in zip(kept, (*mean, *precision), strict=True))


@pytest.mark.usefixtures("every_backend")
def test_a_seed_gives_a_sample_again() -> None:
    mean, precision = many(torch.float32, 9), many(torch.float32, 10, positive=True)
    first, again, other = (
        sample_from_precision(mean, precision, generator=_seeded(seed)) for seed in (3, 3, 4)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.usefixtures("every_backend")
def test_moments() -> None:
    """Mean and variance of n numbers: within six of their standard errors, given the seed."""
    n, mu, variance = 200_000, 1.5, 9 / (3.0 + 1.0)
    mean, precision = [torch.full((n,), mu)], [torch.full((n,), 3.0)]
    (value,) = sample_from_precision(
        mean, precision, prior_precision=1.0, scale=3.0, generator=_seeded(1)
    )
    assert abs(float(value.mean()) - mu) < 6 * (variance / n) ** 0.5
    assert abs(float(value.var()) - variance) < 6 * variance * (2 / n) ** 0.5


@pytest.mark.usefixtures("every_backend")
def test_gradient() -> None:
    mean = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    precision = (torch.rand(3, 2, dtype=torch.float64) + 0.5).requires_grad_()

    def run(mu: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return sample_from_precision([mu], [h], prior_precision=0.5, generator=_seeded(0))[0]

    assert gradcheck(run, (mean, precision))
    with torch.no_grad():
        torch.testing.assert_close(run(mean, precision), run(mean.detach(), precision.detach()))


@pytest.mark.parametrize("bad", [0.0, -2.0, float("nan")])
@pytest.mark.usefixtures("every_backend")
def test_precision_must_be_positive(bad: float) -> None:
    mean, precision = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.ones(3)]
    precision[1][2] = bad
    with pytest.raises(ValueError, match=r"precision\[1\]"):
        sample_from_precision(mean, precision)


@pytest.mark.usefixtures("every_backend")
def test_prior_may_make_it_positive() -> None:
    (value,) = sample_from_precision([torch.zeros(4)], [torch.zeros(4)], prior_precision=2.0)
    assert value.isfinite().all() and value.any()


@pytest.mark.usefixtures("every_backend")
def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"precision\[0\]"):
        sample_from_precision([torch.ones(3)], [torch.ones(4)])
    with pytest.raises(TypeError, match=r"precision\[0\]"):
        sample_from_precision([torch.ones(3)], [torch.ones(3).double()])
    with pytest.raises(ValueError, match="mean"):
        sample_from_precision([], [])
