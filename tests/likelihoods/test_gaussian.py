"""The Gaussian's constant Hessian and its variance."""

from __future__ import annotations

import torch

from lapkernels.likelihoods import Gaussian
from tests.likelihoods.cases import normal


def test_shared_columns_take_the_memory_of_one_sample() -> None:
    columns = Gaussian(0.25).columns(normal(1000, 3, 2))
    made = columns.chunk(1, 4)
    assert columns.shared and made.shape == (3, 1000, 3, 2)
    assert made.stride(1) == 0
    assert made[0, 0].flatten().tolist() == [0, 2, 0, 0, 0, 0]


def test_a_single_sample_is_shared_as_well() -> None:
    assert Gaussian().columns(normal(1, 3)).shared


def test_the_variance_can_be_learned() -> None:
    f, y = normal(5, 3), normal(5, 3, seed=1)
    variance = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(Gaussian(variance).nll(f, y), variance)
    wanted = -0.5 * ((f - y).square() / variance.detach().square()).sum(0)
    torch.testing.assert_close(gradient, wanted)


def test_integer_targets_are_numbers() -> None:
    f, y = normal(2, 3).float(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert Gaussian().nll(f, y) == Gaussian().nll(f, y.float())
    assert torch.equal(Gaussian().score(f, y), f - y)
