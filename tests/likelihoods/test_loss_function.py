"""Losses of the user's own: limits, convexity, and that they sum over samples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.likelihoods import LossFunction
from tests.likelihoods.cases import normal
from tests.likelihoods.oracle import assert_close, gram


def summed_squares(f: Tensor, y: Tensor) -> Tensor:
    return (f - y).square().sum()


def test_outputs_that_are_too_many() -> None:
    likelihood = LossFunction(summed_squares)
    likelihood.check_shapes(normal(1, 32, 32), normal(1, 32, 32))
    f = normal(1, 33, 32)
    with pytest.raises(ValueError, match="f has 1056 outputs a sample.*at most 1024"):
        likelihood.columns(f, f)


def test_a_loss_that_is_not_convex() -> None:
    f, y = normal(3, 2), normal(3, 2, seed=1)
    likelihood = LossFunction(lambda f, y: (f[:, 0] * f[:, 1] * y[:, 0]).sum())
    with pytest.raises(ValueError, match=r"eigenvalue of the loss's Hessian\[0, 0\] = -.*convex"):
        likelihood.columns(f, y)


def test_rounding_is_not_taken_for_concavity() -> None:
    f = 3 * normal(64, 10).float()
    y = torch.arange(64) % 10
    likelihood = LossFunction(lambda f, y: F.cross_entropy(f, y, reduction="sum"))
    p = f.softmax(1)
    wanted = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    assert_close(gram(likelihood.columns(f, y)), wanted, 1e-5)


def test_a_loss_that_couples_outputs() -> None:
    f, y = normal(3, 2, 2), normal(3, 1)
    likelihood = LossFunction(lambda f, y: (f.flatten(1).sum(1, keepdim=True) - y).pow(4).sum())
    likelihood.check(f, y)
    residual = f.flatten(1).sum(1) - y[:, 0]
    wanted = (12 * residual.square()).view(3, 1, 1).expand(3, 4, 4)
    assert_close(gram(likelihood.columns(f, y)), wanted)


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_a_mean_is_refused(samples: int) -> None:
    f, y = normal(samples, 3), normal(samples, 3, seed=1)
    LossFunction(summed_squares).check(f, y)
    with pytest.raises(ValueError, match='loss is not a sum over samples.*reduction="sum"'):
        LossFunction(F.huber_loss).check(f, y)


def test_a_loss_that_is_no_scalar() -> None:
    f = normal(3, 2)
    with pytest.raises(ValueError, match=r"loss returned \(3, 2\): a scalar"):
        LossFunction(lambda f, y: (f - y).square()).nll(f, f)
    with pytest.raises(ValueError, match="loss returned float: a scalar"):
        LossFunction(lambda f, y: 1.0).nll(f, f)  # pyright: ignore[reportArgumentType]


def test_targets_are_needed() -> None:
    likelihood = LossFunction(summed_squares)
    assert likelihood.needs_target
    with pytest.raises(ValueError, match="y is None"):
        likelihood.columns(normal(3, 2))


def test_no_targets_are_drawn() -> None:
    f = normal(3, 2)
    with pytest.raises(NotImplementedError, match="loss defines no distribution"):
        LossFunction(summed_squares).sample(f)
    with pytest.raises(NotImplementedError, match="loss defines no distribution"):
        LossFunction(summed_squares).sampled_column(f, None, f)
