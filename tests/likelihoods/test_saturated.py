"""Probabilities down to 1e-30 and to underflow, against 60-digit decimals."""

from __future__ import annotations

from decimal import Decimal, localcontext
from itertools import permutations

import pytest
import torch
from torch import Tensor

from lapkernels.likelihoods import (
    Bernoulli,
    Categorical,
    HeteroscedasticGaussian,
    Poisson,
)
from tests.likelihoods.oracle import drawn, gram

SURE = list(permutations([0.0, -69.0, -69.5, -23.0])) + [(0.0, -70.0), (-70.0, 0.0)]
# Far under the smallest number of either dtype.
UNDERFLOW = list(permutations([0.0, -2000.0, -2001.0, -80.0]))
DTYPES = [torch.float32, torch.float64]


def exact(logits: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """(p, 1 - p, diag(p) - p pᵀ) in float64, each entry rounded once."""
    with localcontext() as context:
        context.prec = 60
        weights = [Decimal(z).exp() for z in logits]
        total = sum(weights)
        p = [w / total for w in weights]
        rest = [
            sum((w for j, w in enumerate(weights) if j != i), Decimal(0)) / total
            for i in range(len(weights))
        ]
        h = [
            [float(p[i] * rest[i] if i == j else -p[i] * p[j]) for j in range(len(p))]
            for i in range(len(p))
        ]
    double = torch.float64
    return (
        torch.tensor([float(x) for x in p], dtype=double),
        torch.tensor([float(x) for x in rest], dtype=double),
        torch.tensor(h, dtype=double),
    )


def rounding(dtype: torch.dtype) -> float:
    """exp(z) is wrong by |z| roundings, and |z| is up to 70."""
    return 150 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("logits", SURE, ids=str)
def test_categorical_keeps_its_digits(logits: tuple[float, ...], dtype: torch.dtype) -> None:
    f = torch.tensor([logits], dtype=dtype)
    p, rest, h = exact(logits)
    scale = h.diagonal().sqrt()
    likelihood, tolerance = Categorical(), rounding(dtype)

    # Each entry relative to its row and column, as for any factorisation.
    g = gram(likelihood.columns(f)).double()[0]
    assert ((g - h).abs() <= tolerance * scale.outer(scale)).all()

    diagonal = likelihood.diagonal(f).double()[0]
    assert ((diagonal - h.diagonal()).abs() <= tolerance * h.diagonal()).all()

    v = torch.tensor([0.3, -1.1, 0.7, 2.0], dtype=torch.float64)[: len(p)]
    product = likelihood.product(f, v.to(dtype).unsqueeze(0)).double()[0]
    assert ((product - h @ v).abs() <= tolerance * (h.abs() @ v.abs())).all()

    for label in range(len(p)):
        score = likelihood.score(f, torch.tensor([label])).double()[0]
        wanted = p.clone()
        wanted[label] = -rest[label]
        assert ((score - wanted).abs() <= tolerance * wanted.abs()).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("logits", UNDERFLOW, ids=str)
def test_categorical_underflow_is_zero_and_not_nan(
    logits: tuple[float, ...], dtype: torch.dtype
) -> None:
    f = torch.tensor([logits], dtype=dtype, requires_grad=True)
    _, _, h = exact(logits)
    likelihood = Categorical()
    likelihood.check(f)
    columns = likelihood.columns(f)
    assert (gram(columns).double()[0] - h).abs().max() <= 1e-36
    made, signed = columns.chunk(0, columns.count), drawn(columns, f)
    assert made.isfinite().all() and signed.isfinite().all()
    assert signed.abs().max() <= 1e-15
    (gradient,) = torch.autograd.grad(made.sum() + signed.sum(), f)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_categorical_signs_keep_their_digits(dtype: torch.dtype) -> None:
    for logits in SURE:
        f = torch.tensor([logits], dtype=dtype)
        _, _, h = exact(logits)
        every = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=dtype)] * len(logits))
        moment = torch.zeros_like(h)
        for signs in every:
            made = Categorical().columns(f).combined(signs.view(1, 1, -1)).double().flatten()
            moment += made.outer(made) / len(every)
        scale = h.diagonal().sqrt()
        assert ((moment - h).abs() <= rounding(dtype) * scale.outer(scale)).all(), logits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bernoulli_keeps_its_digits(dtype: torch.dtype) -> None:
    for logit in (-69.0, -3.0, 0.0, 40.0, 69.0):
        p, rest, h = exact((logit, 0.0))
        f = torch.tensor([[logit]], dtype=dtype)
        for value, wanted in (
            (Bernoulli().diagonal(f), h[0, 0]),
            (gram(Bernoulli().columns(f)), h[0, 0]),
            (Bernoulli().score(f, torch.ones_like(f)), -rest[0]),
            (Bernoulli().score(f, torch.zeros_like(f)), p[0]),
        ):
            assert (value.double() / wanted - 1).abs() <= rounding(dtype)


def test_roots_do_not_underflow_before_their_squares() -> None:
    f = torch.tensor([[-150.0]])
    assert Poisson().diagonal(f) == 0
    wanted = pytest.approx(2.6786370e-33, rel=1e-5, abs=0)
    assert Poisson().columns(f).chunk(0, 1).item() == wanted
    assert Bernoulli().columns(f).chunk(0, 1).item() == wanted


def test_log_variances_far_from_zero_are_finite() -> None:
    f = torch.tensor([[0.5, -0.5, 80.0, -80.0]])
    likelihood = HeteroscedasticGaussian()
    likelihood.check(f)
    columns = likelihood.columns(f)
    wanted = torch.tensor([-40.0, 40.0]).exp()
    torch.testing.assert_close(columns.chunk(0, 4)[[0, 1], 0, [0, 1]], wanted)
