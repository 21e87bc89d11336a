"""Targets drawn from the model: their distribution, and the Hessian as their scores' covariance.

One sample's outputs are repeated many times. Means are compared with a bound of six standard
errors, estimated or exact: a false alarm of 2e-9 for each entry. Seeds are fixed.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapkernels.likelihoods import (
    Bernoulli,
    Categorical,
    LossFunction,
    Poisson,
)
from tests.likelihoods.cases import CASES, Case, by_name, normal
from tests.likelihoods.oracle import hessian

DRAWS = 20_000
SIGMAS = 6.0


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def repeated(x: Tensor) -> Tensor:
    """The first sample of x, DRAWS times."""
    return x[:1].expand(DRAWS, *x.shape[1:])


def assert_mean(draws: Tensor, wanted: Tensor) -> None:
    """The mean over dimension 0 is as wanted, to six of its standard errors."""
    error = draws.std(0) / len(draws) ** 0.5
    off = (draws.mean(0) - wanted).abs()
    assert (off <= SIGMAS * error + 1e-12).all(), f"{(off / error).max():.1f} standard errors"


PROBABILISTIC = [case for case in CASES if not isinstance(case.likelihood, LossFunction)]


@pytest.mark.parametrize("case", PROBABILISTIC, ids=[case.name for case in PROBABILISTIC])
def test_sampled_column_has_the_hessian_as_second_moment(case: Case) -> None:
    f, y = repeated(case.f), repeated(case.y)
    s = case.likelihood.sampled_column(f, generator(), y).reshape(DRAWS, -1)
    assert_mean(s, torch.zeros(s.shape[1], dtype=s.dtype))
    assert_mean(s.unsqueeze(2) * s.unsqueeze(1), hessian(case)[0])


@pytest.mark.parametrize(
    "likelihood",
    [
        Categorical(),
        Categorical(label_smoothing=0.4),
        Categorical(weight=torch.tensor([0.2, 3.0, 1.0, 0.5], dtype=torch.float64)),
    ],
    ids=["plain", "smoothed", "weighted"],
)
def test_sampled_column_of_all_labels_averages_to_the_hessian(
    likelihood: Categorical, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, y = normal(3, 4), torch.tensor([0, 1, 3])
    total = torch.zeros(3, 4, 4, dtype=torch.float64)
    for label in range(4):
        monkeypatch.setattr(
            Categorical, "sample", lambda *args, label=label: torch.full((3,), label)
        )
        s = likelihood.sampled_column(f, None, y)[0]
        total += f.softmax(1)[:, label, None, None] * s.unsqueeze(2) * s.unsqueeze(1)
    basis = torch.eye(4, dtype=f.dtype).unsqueeze(1).expand(4, 3, 4)
    wanted = likelihood.product(f, basis, y).permute(1, 2, 0)
    torch.testing.assert_close(total, wanted, rtol=1e-13, atol=1e-15)


def test_categorical_labels_are_independent_over_positions() -> None:
    f = torch.zeros(1, 2, 3)
    y = Categorical().sample(repeated(f), generator())
    joint = (4 * y[:, 0] + 2 * y[:, 1] + y[:, 2]).bincount(minlength=8) / DRAWS
    assert (joint - 1 / 8).abs().max() < SIGMAS * (1 / 8 * 7 / 8 / DRAWS) ** 0.5


def test_categorical_labels_stay_ignored_where_the_target_is() -> None:
    case = by_name["categorical, everything"]
    y = case.likelihood.sample(case.f, generator(), case.y)
    assert torch.equal(y == 255, case.y == 255)
    assert torch.equal(case.likelihood.score(case.f, y)[0, :, 0, 0], torch.zeros(3).double())
    column = case.likelihood.sampled_column(case.f, generator(), case.y)
    assert torch.equal((column[0] == 0).all(1), case.y == 255)


def test_categorical_saturated_labels_are_the_sure_class() -> None:
    f = torch.tensor([[0.0, 200.0, -300.0]]).expand(1000, 3)
    assert (Categorical().sample(f, generator()) == 1).all()


def test_counts_are_whole() -> None:
    f = normal(1, 2, 3)
    assert set(Bernoulli().sample(repeated(f), generator()).unique().tolist()) == {0.0, 1.0}
    counts = Poisson().sample(repeated(f), generator())
    assert torch.equal(counts, counts.round()) and counts.max() > 1


@pytest.mark.parametrize("case", PROBABILISTIC, ids=[case.name for case in PROBABILISTIC])
def test_the_generator_decides(case: Case) -> None:
    first = case.likelihood.sample(case.f, torch.Generator().manual_seed(3))
    assert torch.equal(first, case.likelihood.sample(case.f, torch.Generator().manual_seed(3)))
