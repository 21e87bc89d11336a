"""Ops over lists of all parameters, against formulas in float64 and torch.distributions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Normal, kl_divergence

from lapkernels.ops import (
    gaussian_kl,
    precision_update,
    sample_from_precision,
    squared_gradient_sum,
)
from tests.ops.compare import assert_same, assert_within
from tests.ops.layouts import BUFFERS
from tests.ops.lists import count, many

pytestmark = pytest.mark.usefixtures("every_backend")
PRIOR = 0.7
# Roundings of one term: the exponential, its argument, squares, quotient and logarithm.
TERM = {"kl": 8, "gradients": 6}
SUMS: dict[str, Callable[..., Tensor]] = {
    "kl": lambda mean, log_sigma: gaussian_kl(mean, log_sigma, PRIOR),
    "gradients": squared_gradient_sum,
}


def divergence(mean: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    zero, sigma = torch.tensor([0.0, PRIOR], dtype=torch.float64)
    prior = Normal(zero, sigma)
    terms = [
        kl_divergence(Normal(mu.double(), ls.double().exp()), prior).sum()
        for mu, ls in zip(mean, log_sigma, strict=True)
    ]
    return torch.stack(terms).sum()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", SUMS)
def test_sums_equal_brute_force(name: str, dtype: torch.dtype) -> None:
    first, log_sigma = many(dtype, 0), many(dtype, 1)
    found = SUMS[name](first, log_sigma)
    assert found.shape == () and found.dtype == dtype
    pairs = [(a.double(), ls.double()) for a, ls in zip(first, log_sigma, strict=True)]
    if name == "kl":
        wanted = divergence(first, log_sigma)
        parts = [(2 * ls).exp() / PRIOR**2 + (a / PRIOR) ** 2 + 2 * ls.abs() for a, ls in pairs]
        magnitude = torch.stack([part.sum() for part in parts]).sum() + 2 * count()
    else:
        # Every term is positive, so the result is its own magnitude.
        wanted = torch.stack([((ls.exp() * a) ** 2).sum() for a, ls in pairs]).sum()
        magnitude = wanted
    tolerance = torch.finfo(dtype).eps * (count() + TERM[name]) * magnitude
    assert_within(found, wanted, tolerance)


@pytest.mark.parametrize("name", SUMS)
def test_sums_have_two_derivatives(name: str) -> None:
    lists = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 1, 3, 1)]
    run = lambda a, b, c, d: SUMS[name]([a, b], [c, d])  # noqa: E731
    assert gradcheck(run, lists)
    assert gradgradcheck(run, lists)


def test_float32_is_accurate_over_many_terms() -> None:
    """Sums over a network's parameters must not drift: far below one rounding a term."""
    mean, log_sigma = [torch.randn(400_000)], [torch.randn(400_000) - 3]
    wanted = divergence(mean, log_sigma)
    assert abs(float(gaussian_kl(mean, log_sigma, PRIOR)) - wanted) < 1e-5 * wanted


def test_sum_of_squared_gradients_is_exact_on_integers(dtype: torch.dtype) -> None:
    gradient = [(g * 2).round() for g in many(dtype, 4)]
    unit = [torch.zeros_like(g) for g in gradient]
    wanted = torch.stack([g.double().square().sum() for g in gradient]).sum()
    assert_same(squared_gradient_sum(gradient, unit), wanted)


def test_precision_is_updated_in_every_entry(dtype: torch.dtype) -> None:
    precision, diagonal = many(dtype, 5, positive=True), many(dtype, 6)
    before = [h.clone() for h in precision]
    kept = [d.clone() for d in diagonal]
    assert precision_update(precision, diagonal, 0.9, 3.0) is None
    eps = torch.finfo(dtype).eps
    for h, old, d, same in zip(precision, before, diagonal, kept, strict=True):
        parts = 0.9 * old.double(), 3.0 * d.double()
        magnitude = parts[0].abs() + parts[1].abs()
        # Two products, whose factors are rounded too, and one sum.
        assert_within(h, parts[0] + parts[1], 3 * eps * magnitude, empty=not h.numel())
        assert torch.equal(d, same)


def test_updates_of_integers_are_exact(dtype: torch.dtype) -> None:
    precision, diagonal = ([(h * 4).round() for h in many(dtype, seed)] for seed in (7, 8))
    wanted = [0.5 * h + 3 * d for h, d in zip(precision, diagonal, strict=True)]
    precision_update(precision, diagonal, 0.5, 3.0)
    for h, value in zip(precision, wanted, strict=True):
        assert_same(h, value, empty=not h.numel())


def test_updates_without_scale_or_decay() -> None:
    """The scale is one by default; with no decay the old content is not read."""
    precision = [torch.full((3,), 8.0)]
    precision_update(precision, [torch.full((3,), 2.0)], 0.5)
    assert_same(precision[0], torch.full((3,), 6.0))
    precision = [torch.full((5,), float("nan"))]
    precision_update(precision, [torch.ones(5)], 0.0, 2.0)
    assert_same(precision[0], torch.full((5,), 2.0))


@pytest.mark.parametrize("buffer", BUFFERS)
def test_updates_write_nowhere_else(buffer: str) -> None:
    target = BUFFERS[buffer](torch.ones(5, 7))
    target.view.fill_(4.0)
    precision_update([target.view], [torch.ones(7, 5).T], 0.5, 3.0)
    assert_same(target.view, torch.full((5, 7), 5.0))
    target.assert_untouched_outside()


def test_samples_equal_the_formula_on_the_same_noise(dtype: torch.dtype) -> None:
    mean, precision = many(dtype, 9), many(dtype, 10, positive=True)
    kept = [t.clone() for t in (*mean, *precision)]
    found = sample_from_precision(
        mean, precision, prior_precision=0.5, scale=2.0, generator=seeded(0)
    )
    generator, eps = seeded(0), torch.finfo(dtype).eps
    for value, mu, h in zip(found, mean, precision, strict=True):
        assert value.dtype == dtype
        noise = torch.randn(mu.shape, dtype=dtype, generator=generator).double()
        spread = 2.0 * noise / (h.double() + 0.5).sqrt()
        # The sum under the root, the root, its inverse, two products and the last sum.
        tolerance = 6 * eps * (mu.double().abs() + spread.abs())
        assert_within(value, mu.double() + spread, tolerance, empty=not mu.numel())
    assert all(torch.equal(a, b) for a, b in zip(kept, (*mean, *precision), strict=True))


def test_a_seed_gives_a_sample_again() -> None:
    mean, precision = many(torch.float32, 9), many(torch.float32, 10, positive=True)
    first, again, other = (
        sample_from_precision(mean, precision, generator=seeded(seed)) for seed in (3, 3, 4)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_gradient_of_samples() -> None:
    mean = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    precision = (torch.rand(3, 2, dtype=torch.float64) + 0.5).requires_grad_()

    def run(mu: Tensor, h: Tensor) -> Tensor:
        return sample_from_precision([mu], [h], prior_precision=0.5, generator=seeded(0))[0]

    assert gradcheck(run, (mean, precision))
    with torch.no_grad():
        torch.testing.assert_close(run(mean, precision), run(mean.detach(), precision.detach()))


@pytest.mark.parametrize("bad", [0.0, -2.0, float("nan")])
def test_precision_must_be_positive(bad: float) -> None:
    """With the prior's, which may make it so."""
    mean, precision = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.ones(3)]
    precision[1][2] = bad
    with pytest.raises(ValueError, match=r"precision\[1\]"):
        sample_from_precision(mean, precision)
    (value,) = sample_from_precision([torch.zeros(4)], [torch.zeros(4)], prior_precision=2.0)
    assert value.isfinite().all() and value.any()


ONE, TWO = torch.ones(3), torch.ones(4)
update = partial(precision_update, decay=0.5)
WRONG: dict[str, tuple[Callable[..., Any], list[Tensor], list[Tensor], Any, str]] = {
    "kl, entries": (SUMS["kl"], [ONE, TWO], [ONE], ValueError, "log_sigma has 1 entries"),
    "kl, shape": (SUMS["kl"], [ONE, TWO], [ONE, ONE], ValueError, r"log_sigma\[1\]"),
    "kl, dtype": (SUMS["kl"], [ONE, TWO], [ONE, TWO.double()], TypeError, r"log_sigma\[1\]"),
    "kl, integers": (SUMS["kl"], [ONE.long()], [ONE.long()], TypeError, "mean"),
    "kl, nothing": (SUMS["kl"], [], [], ValueError, "mean"),
    "gradients, shape": (squared_gradient_sum, [ONE], [TWO], ValueError, r"log_sigma\[0\]"),
    "gradients, entries": (squared_gradient_sum, [ONE], [ONE] * 2, ValueError, "log_sigma has 2"),
    "gradients, device": (squared_gradient_sum, [ONE], [ONE.to("meta")], ValueError, "meta"),
    "gradients, nothing": (squared_gradient_sum, [], [], ValueError, "gradient"),
    "update, shape": (update, [ONE], [torch.ones(1)], ValueError, r"diagonal\[0\]"),
    "update, dtype": (update, [ONE], [ONE.double()], TypeError, r"diagonal\[0\]"),
    "update, entries": (update, [ONE], [ONE, ONE], ValueError, "diagonal has 2"),
    "update, overlap": (update, [torch.ones(1).expand(3)], [ONE], RuntimeError, ""),
    "sample, shape": (sample_from_precision, [ONE], [TWO], ValueError, r"precision\[0\]"),
    "sample, dtype": (sample_from_precision, [ONE], [ONE.double()], TypeError, r"precision\[0\]"),
    "sample, nothing": (sample_from_precision, [], [], ValueError, "mean"),
    **{
        f"kl, prior {prior}": (
            partial(gaussian_kl, prior_sigma=prior), [ONE], [ONE], ValueError, "prior_sigma",
        )
        for prior in (0.0, -1.0, float("nan"))
    },
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_lists_are_named(what: str) -> None:
    call, first, second, error, message = WRONG[what]
    with pytest.raises(error, match=message):
        call(first, second)
