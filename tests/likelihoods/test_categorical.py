"""When the Hessian of a categorical needs targets, and what they change."""

from __future__ import annotations

import pytest
import torch

from lapkernels.likelihoods import Categorical, Likelihood
from tests.likelihoods.cases import CASES, by_name, normal
from tests.likelihoods.oracle import factor

WEIGHTED = Categorical(weight=torch.tensor([1.0, 2.0, 3.0]))
IGNORING = Categorical(ignore_index=255)


@pytest.mark.parametrize(
    ("likelihood", "name"), [(WEIGHTED, "weight"), (IGNORING, "ignore_index")], ids=["w", "i"]
)
def test_hessian_without_the_targets_it_needs(likelihood: Likelihood, name: str) -> None:
    assert likelihood.needs_target
    f = normal(4, 3)
    likelihood.check(f)
    message = f"y is None, but the Hessian depends on the targets through {name}"
    for call in ("columns", "diagonal", "sampled_column"):
        with pytest.raises(ValueError, match=message):
            getattr(likelihood, call)(f)
    with pytest.raises(ValueError, match=message):
        likelihood.product(f, f)


@pytest.mark.parametrize("likelihood", [Categorical(), Categorical(label_smoothing=0.3)])
def test_hessian_without_targets_where_none_are_needed(likelihood: Categorical) -> None:
    assert not likelihood.needs_target
    f, y = normal(4, 3, 2), torch.ones(4, 2, dtype=torch.long)
    with_targets, without = likelihood.columns(f, y), likelihood.columns(f)
    assert torch.equal(without.chunk(0, 4), with_targets.chunk(0, 4))
    assert torch.equal(likelihood.diagonal(f), likelihood.diagonal(f, y))
    assert torch.equal(likelihood.product(f, f), likelihood.product(f, f, y))


def test_only_likelihoods_that_read_targets_need_them() -> None:
    for case in CASES:
        if not case.likelihood.needs_target:
            columns = case.likelihood.columns(case.f)
            if "ignored" not in case.name and "probabilities" not in case.name:
                assert torch.equal(factor(columns), factor(case.likelihood.columns(case.f, case.y)))


def test_ignored_positions_have_no_curvature_and_no_score() -> None:
    case = by_name["categorical, everything"]
    ignored = (case.y == 255).unsqueeze(1).expand_as(case.f)
    columns = case.likelihood.columns(case.f, case.y)
    assert (columns.chunk(0, columns.count)[:, ignored] == 0).all()
    assert (case.likelihood.score(case.f, case.y)[ignored] == 0).all()
    assert (case.likelihood.diagonal(case.f, case.y)[ignored] == 0).all()
    assert (case.likelihood.diagonal(case.f, case.y)[~ignored] > 0).all()


def test_labels_of_any_integer_dtype() -> None:
    f, y = normal(3, 4), torch.tensor([0, 3, 1])
    for dtype in (torch.uint8, torch.int16, torch.int32):
        Categorical().check(f, y.to(dtype))
        assert Categorical().nll(f, y.to(dtype)) == Categorical().nll(f, y)
        assert torch.equal(Categorical().score(f, y.to(dtype)), Categorical().score(f, y))


def test_the_rank_of_the_hessian_is_the_number_of_columns() -> None:
    f = normal(2, 3, 2, 4)
    columns = Categorical().columns(f)
    assert columns.count == 2 * 8
    assert torch.linalg.matrix_rank(factor(columns)).tolist() == [16, 16]


def test_a_column_lies_at_one_position() -> None:
    f = normal(2, 3, 2, 4)
    columns = Categorical().columns(f).chunk(0, 16)
    for v, column in enumerate(columns):
        touched = (column != 0).any(1).flatten(1)
        assert touched.sum() == 2 and touched[:, v // 2].all()
