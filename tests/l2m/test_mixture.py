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


def test_members_may_differ_in_noise_and_targets_have_the_density_of_the_mixture() -> None:
    found, x = members("gaussian", 1)
    y = torch.linspace(-1, 1, 4).double().unsqueeze(1)
    data = (torch.randn(12, 2).double(), torch.randn(12, 1).double())
    noises = (0.01, 0.3, torch.tensor([2.0]))
    differing = [
        lk.Laplace(member.model, lk.likelihoods.Gaussian(noise)).fit(data)
        for member, noise in zip(found, noises, strict=True)
    ]
    mixture = lk.Mixture(differing).predict(x)
    densities = [
        torch.distributions.Normal(p.mean, (p.variance + p.noise).sqrt()).log_prob(y).exp()
        for p in (member.predict(x) for member in differing)
    ]
    torch.testing.assert_close(mixture.log_likelihood(y), torch.stack(densities).mean(0).log())
    torch.testing.assert_close(mixture.noise, torch.full_like(mixture.mean, (0.01 + 0.3 + 2) / 3))


def test_logits_are_compared_over_classes_wherever_they_lie() -> None:
    """Two members apart by a constant in all logits agree; dimensions may count from behind."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 2, 3).double(), torch.randint(4, (6, 2))
    net = nn.Linear(3, 4).double()
    other = nn.Linear(3, 4).double()
    with torch.no_grad():
        other.weight.copy_(net.weight)
        other.bias.copy_(net.bias + 5)
    alone, mixed = [], []
    for dim in (-1, 2):
        likelihood = lk.likelihoods.Categorical(dim=dim)
        pair = [lk.Laplace(model, likelihood).fit((x, y)) for model in (net, other)]
        alone.append(pair[0].predict(x).variance)
        mixed.append(lk.Mixture(pair).predict(x))
    for variance, prediction in zip(alone, mixed, strict=True):
        torch.testing.assert_close(prediction.variance, variance)
        centred = net(x).detach() - net(x).detach().mean(2, keepdim=True)
        torch.testing.assert_close(prediction.mean, centred)
