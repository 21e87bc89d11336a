"""Every likelihood against automatic differentiation of torch's own loss, in float64."""

from __future__ import annotations

import pytest
import torch

from tests.likelihoods.cases import Case, every_case, normal
from tests.likelihoods.oracle import assert_close, factor, gram, hessian


@every_case
def test_check_accepts_outputs_and_targets(case: Case) -> None:
    case.likelihood.check(case.f, case.y)


@every_case
def test_nll_is_the_sum_of_torchs_loss(case: Case) -> None:
    # Constants are left out: differences between two outputs are equal.
    other = case.f + normal(*case.f.shape, seed=8)
    value = case.likelihood.nll(case.f, case.y) - case.likelihood.nll(other, case.y)
    assert_close(value, case.loss(case.f, case.y) - case.loss(other, case.y))


@every_case
def test_score_is_the_gradient(case: Case) -> None:
    f = case.f.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(case.loss(f, case.y), f)
    assert_close(case.likelihood.score(case.f, case.y), wanted)


@every_case
def test_columns_are_a_factor_of_the_hessian(case: Case) -> None:
    columns = case.likelihood.columns(case.f, case.y)
    made = columns.chunk(0, columns.count)
    assert made.shape == (columns.count, *case.f.shape)
    assert_close(gram(columns), hessian(case))


@every_case
def test_diagonal_is_that_of_the_hessian(case: Case) -> None:
    wanted = hessian(case).diagonal(dim1=1, dim2=2).reshape(case.f.shape)
    assert_close(case.likelihood.diagonal(case.f, case.y), wanted)


@every_case
def test_product_is_with_the_hessian(case: Case) -> None:
    h = hessian(case)
    for lead in ((), (3,), (2, 3), (0,)):
        v = normal(*lead, *case.f.shape, seed=2)
        flat = v.reshape(*lead, len(case.f), case.f.shape[1:].numel())
        wanted = torch.einsum("npq,...nq->...np", h, flat).reshape(v.shape)
        assert_close(case.likelihood.product(case.f, v, case.y), wanted)


@every_case
def test_chunks_are_parts_of_the_whole(case: Case) -> None:
    columns = case.likelihood.columns(case.f, case.y)
    whole = columns.chunk(0, columns.count)
    for size in (1, 3, columns.count + 1):
        starts = range(0, columns.count, size)
        parts = [columns.chunk(first, min(first + size, columns.count)) for first in starts]
        assert torch.equal(torch.cat(parts) if parts else whole, whole)
    assert columns.chunk(columns.count, columns.count).shape == (0, *case.f.shape)


@every_case
def test_shared_columns_do_not_depend_on_the_sample(case: Case) -> None:
    columns = case.likelihood.columns(case.f, case.y)
    s = factor(columns)
    same = columns.count > 0 and torch.equal(s, s[:1].expand_as(s))
    assert columns.shared is (same and case.name.startswith("gaussian"))


@every_case
def test_chunk_refuses_columns_that_are_not_there(case: Case) -> None:
    columns = case.likelihood.columns(case.f, case.y)
    for first, last in ((-1, 1), (2, 1), (0, columns.count + 1)):
        wanted = f"first = {first}, last = {last}: .* {columns.count} is"
        with pytest.raises(ValueError, match=wanted):
            columns.chunk(first, last)


@every_case
def test_no_samples_give_empty_results(case: Case) -> None:
    f, y = case.f[:0], case.y[:0]
    likelihood = case.likelihood
    likelihood.check(f, y)
    columns = likelihood.columns(f, y)
    assert columns.count == likelihood.columns(case.f, case.y).count
    assert columns.chunk(0, columns.count).shape == (columns.count, *f.shape)
    assert columns.combined(torch.ones(3, len(f), columns.signed)).shape == (3, *f.shape)
    assert likelihood.nll(f, y) == 0
    assert likelihood.score(f, y).shape == f.shape
    assert likelihood.diagonal(f, y).shape == f.shape
    assert likelihood.product(f, f.expand(2, *f.shape), y).shape == (2, *f.shape)


@every_case
def test_memory_layout_of_outputs_does_not_matter(case: Case) -> None:
    f = case.f.mT.contiguous().mT if case.f.dim() > 1 else case.f.repeat_interleave(2)[::2]
    assert not f.is_contiguous() or f.numel() == f.shape[0]
    likelihood, y = case.likelihood, case.y
    assert_close(likelihood.score(f, y), likelihood.score(case.f, y))
    assert_close(gram(likelihood.columns(f, y)), gram(likelihood.columns(case.f, y)))
    assert_close(likelihood.product(f, f, y), likelihood.product(case.f, case.f, y))


@every_case
def test_columns_score_and_diagonal_can_be_differentiated(case: Case) -> None:
    f = case.f.clone().requires_grad_()
    columns = case.likelihood.columns(f, case.y)
    value = columns.chunk(0, columns.count).square().sum()
    traces = (value, case.likelihood.diagonal(f, case.y).sum())
    if value.requires_grad:
        by_columns, by_diagonal = (torch.autograd.grad(trace, f)[0] for trace in traces)
        if not case.name.startswith("loss"):
            torch.testing.assert_close(by_columns, by_diagonal, rtol=1e-10, atol=1e-12)
