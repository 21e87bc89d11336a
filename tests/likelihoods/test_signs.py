"""Random signs of the columns: each draw exactly, then that the signs are fair and independent."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lapkernels.likelihoods import Categorical, categorical, independent, loss_function
from lapkernels.likelihoods.likelihood import random_signs
from tests.likelihoods.cases import CASES, Case, by_name, normal
from tests.likelihoods.oracle import assert_close, factor, hessian

# The signs of a categorical belong to C columns, one more than its rank: tested by themselves.
INDEPENDENT = [case for case in CASES if not case.name.startswith(("categorical", "loss"))]


@pytest.mark.parametrize("case", INDEPENDENT, ids=[case.name for case in INDEPENDENT])
def test_a_draw_is_the_sum_of_all_columns_with_signs(case: Case) -> None:
    columns = case.likelihood.columns(case.f, case.y)
    drawn = columns.signs(torch.Generator().manual_seed(1))
    assert drawn.shape == (1, *case.f.shape)
    s = factor(columns)
    e = torch.linalg.solve(s, drawn.reshape(len(case.f), -1, 1))
    assert_close(e.abs(), torch.ones_like(e))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_second_moment_over_all_signs_is_the_hessian(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The draw is linear in the signs, so that E[s sᵀ] is the sum over one sign at a time.
    size, h = case.f.shape[1:].numel(), hessian(case)
    found = torch.zeros_like(h)
    for k in range(size):

        def one(like: Tensor, generator: object, k: int = k) -> Tensor:
            return torch.eye(size, dtype=like.dtype)[k].reshape(like.shape[1:]).expand_as(like)

        for module in (independent, categorical, loss_function):
            monkeypatch.setattr(module, "random_signs", one)
        s = case.likelihood.columns(case.f, case.y).signs().reshape(len(case.f), size)
        found += s.unsqueeze(2) * s.unsqueeze(1)
    assert_close(found, h)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_generator_decides(case: Case) -> None:
    columns = case.likelihood.columns(case.f, case.y)
    first = columns.signs(torch.Generator().manual_seed(3))
    assert torch.equal(first, columns.signs(torch.Generator().manual_seed(3)))


def test_ignored_positions_stay_zero() -> None:
    case = by_name["categorical, ignored"]
    drawn = case.likelihood.columns(case.f, case.y).signs(torch.Generator().manual_seed(0))
    zero = (drawn[0] == 0).all(1)
    assert torch.equal(zero, case.y == -100)


def test_signs_are_fair_and_independent() -> None:
    # Hoeffding: a mean of R products of two signs is beyond t with probability < 2 exp(-R t² / 2);
    # R t² / 2 = 27 leaves 1e-8 for all entries of the matrix together. The seed is fixed.
    draws, generator = 1000, torch.Generator().manual_seed(7)
    like = torch.zeros(4, 3, 5, dtype=torch.float64)
    e = torch.stack([random_signs(like, generator).flatten() for _ in range(draws)])
    bound = math.sqrt(2 * 27 / draws)
    assert e.mean(0).abs().max() < bound
    assert (e.T @ e / draws - torch.eye(60, dtype=e.dtype)).abs().max() < bound


@pytest.mark.parametrize("name", ["gaussian", "categorical, images", "bernoulli", "loss, huber"])
def test_draws_of_different_samples_are_independent(name: str) -> None:
    # As above for the normalised inner products of two samples' draws, each in [-1, 1].
    case, draws, generator = by_name[name], 1000, torch.Generator().manual_seed(7)
    columns = case.likelihood.columns(case.f, case.y)
    drawn = torch.stack([columns.signs(generator)[0].flatten(1) for _ in range(draws)])
    bound = math.sqrt(2 * 27 / draws)
    first, second = drawn[:, 0], drawn[:, 1]
    limit = first.abs().amax(0).unsqueeze(1) * second.abs().amax(0)
    assert ((first.T @ second / draws).abs() <= bound * limit).all()


def test_random_signs_are_signs() -> None:
    signs = random_signs(torch.zeros(50, 50), torch.Generator().manual_seed(0))
    assert signs.dtype == torch.float32
    assert torch.equal(signs.abs(), torch.ones(50, 50))
    assert 0 < (signs > 0).sum() < signs.numel()


def test_a_draw_needs_no_more_memory_than_a_few_columns() -> None:
    # 20 * 2^16 outputs a sample: the columns would be 6 TB.
    f = normal(1, 20, 256, 256).float()
    columns = Categorical().columns(f)
    assert columns.count == 19 * 2**16
    assert columns.signs().shape == (1, *f.shape)
    assert columns.chunk(19 * 2**15, 19 * 2**15 + 2).shape == (2, *f.shape)
