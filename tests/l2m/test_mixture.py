"""A mixture against draws from it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk


def members(likelihood: str, outputs: int) -> tuple[list[lk.Laplace], Tensor]:
    torch.manual_seed(0)
    x = torch.randn(12, 2).double()
    y = torch.randint(3, (12,)) if likelihood == "categorical" else torch.randn(12, 1).double()
    found = []
    for _ in range(3):
        net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
        found.append(lk.Laplace(net, likelihood).fit((x, y)))
    return found, x[:4]


def test_regression_is_the_law_of_total_variance() -> None:
    found, x = members("gaussian", 1)
    mixture = lk.Mixture(found).predict(x, joint=True)
    parts = [member.predict(x, joint=True) for member in found]
    means = torch.stack([part.mean for part in parts])
    second = torch.stack([part.variance + part.mean**2 for part in parts]).mean(0)
    torch.testing.assert_close(mixture.mean, means.mean(0))
    torch.testing.assert_close(mixture.variance, second - means.mean(0) ** 2)
    assert mixture.covariance is not None
    torch.testing.assert_close(mixture.covariance[:, 0, 0], mixture.variance[:, 0])


def test_class_probabilities_are_averaged() -> None:
    found, x = members("categorical", 3)
    expected = torch.stack([member.predict(x).probabilities for member in found]).mean(0)
    torch.testing.assert_close(lk.Mixture(found).predict(x).probabilities, expected)


def test_one_member_is_itself() -> None:
    found, x = members("gaussian", 1)
    torch.testing.assert_close(
        lk.Mixture(found[:1]).predict(x).variance, found[0].predict(x).variance
    )


def test_members_must_match() -> None:
    with pytest.raises(ValueError, match="empty"):
        lk.Mixture([])
    with pytest.raises(ValueError, match="differ"):
        lk.Mixture([members("gaussian", 1)[0][0], members("categorical", 3)[0][0]])
