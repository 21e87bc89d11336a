"""Columns with random signs: their sums, and that the signs are fair, independent, orthogonal."""

from __future__ import annotations

import math

import pytest
import torch

from lapkernels.likelihoods import Categorical
from lapkernels.likelihoods.likelihood import Signs
from tests.likelihoods.cases import CASES, Case, by_name, every_case, normal
from tests.likelihoods.oracle import assert_close, drawn, factor, hessian

# The signs of a categorical belong to C columns, one more than its rank: tested by themselves.
INDEPENDENT = [case for case in CASES if not case.name.startswith(("categorical", "loss"))]


@pytest.mark.parametrize("case", INDEPENDENT, ids=[case.name for case in INDEPENDENT])
def test_a_draw_is_the_sum_of_all_columns_with_signs(case: Case) -> None:
    columns = case.likelihood.columns(case.f, case.y)
    e = torch.linspace(-1, 2, 2 * len(case.f) * columns.signed, dtype=torch.float64)
    e = e.reshape(2, len(case.f), columns.signed)
    made = columns.combined(e).reshape(2, len(case.f), -1)
    assert_close(made, torch.einsum("nov,knv->kno", factor(columns), e).to(made.dtype))


@every_case
def test_second_moment_over_all_signs_is_the_hessian(case: Case) -> None:
    # The draw is linear in the signs, so that E[s sᵀ] is the sum over one sign at a time.
    columns = case.likelihood.columns(case.f, case.y)
    one = torch.eye(columns.signed, dtype=case.f.dtype).unsqueeze(1).expand(-1, len(case.f), -1)
    s = columns.combined(one).reshape(columns.signed, len(case.f), -1)
    assert_close(torch.einsum("kno,knp->nop", s, s), hessian(case))


@every_case
def test_a_period_of_draws_has_the_hessian(case: Case) -> None:
    columns = case.likelihood.columns(case.f, case.y)
    signs = Signs((len(case.f), columns.signed), torch.Generator().manual_seed(0), case.f.device)
    assert signs.period < 2 * max(columns.signed, 1)
    parts = [signs.draws(0, 1, case.f.dtype), signs.draws(1, signs.period, case.f.dtype)]
    s = columns.combined(torch.cat(parts)).reshape(signs.period, len(case.f), -1)
    assert_close(torch.einsum("kno,knp->nop", s, s) / signs.period, hessian(case))


def test_ignored_positions_stay_zero() -> None:
    case = by_name["categorical, ignored"]
    made = drawn(case.likelihood.columns(case.f, case.y), case.f)
    assert torch.equal((made[0] == 0).all(1), case.y == -100)


@pytest.mark.parametrize("k", [0, 5])
def test_signs_are_fair_and_independent(k: int) -> None:
    # Hoeffding: a mean of R products of two signs is beyond t with probability < 2 exp(-R t² / 2);
    # R t² / 2 = 27 leaves 1e-8 for all entries of the matrix together. The seed is fixed.
    count, generator = 1000, torch.Generator().manual_seed(7)
    made = [Signs((4, 15), generator, torch.device("cpu")) for _ in range(count)]
    e = torch.stack([one.draws(k, k + 1, torch.float64).flatten() for one in made])
    assert torch.equal(e.abs(), torch.ones_like(e))
    bound = math.sqrt(2 * 27 / count)
    assert e.mean(0).abs().max() < bound
    assert (e.T @ e / count - torch.eye(60, dtype=e.dtype)).abs().max() < bound


def test_draws_are_the_same_in_any_portions() -> None:
    def signs() -> Signs:
        return Signs((3, 9), torch.Generator().manual_seed(3), torch.device("cpu"))

    whole, one = signs().draws(0, 40, torch.float32), signs()
    parts = [one.draws(k, min(k + 7, 40), torch.float32) for k in range(0, 40, 7)]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(whole[:16], whole[16:32])  # a period
    other = Signs((3, 16), torch.Generator().manual_seed(3), torch.device("cpu"))
    full = other.draws(0, 16, torch.float32)
    assert torch.equal(full[:, 0] @ full[:, 0].T, 16 * torch.eye(16))


def test_a_draw_needs_no_more_memory_than_a_few_columns() -> None:
    # 20 * 2^16 outputs a sample: the columns would be 6 TB.
    f = normal(1, 20, 256, 256).float()
    columns = Categorical().columns(f)
    assert columns.count == 19 * 2**16
    assert drawn(columns, f).shape == (1, *f.shape)
    assert columns.chunk(19 * 2**15, 19 * 2**15 + 2).shape == (2, *f.shape)
