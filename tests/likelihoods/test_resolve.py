"""Likelihoods from words, torch losses and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lapkernels.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    LossFunction,
    Poisson,
    resolve,
)
from tests.likelihoods.cases import normal
from tests.likelihoods.oracle import assert_close, gram


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("gaussian", Gaussian),
        ("regression", Gaussian),
        ("categorical", Categorical),
        ("classification", Categorical),
        ("bernoulli", Bernoulli),
        ("multilabel", Bernoulli),
        ("poisson", Poisson),
        ("heteroscedastic", HeteroscedasticGaussian),
    ],
)
def test_words(word: str, kind: type[Likelihood]) -> None:
    assert type(resolve(word)) is kind


def test_the_gaussian_of_a_word_has_unit_noise() -> None:
    assert torch.equal(resolve("regression").diagonal(normal(2, 3)), torch.ones(2, 3).double())


def test_a_likelihood_is_itself() -> None:
    likelihood = Gaussian(0.3)
    assert resolve(likelihood) is likelihood


WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
LABELS, COUNTS = torch.tensor([0, 2, 1, 1]), normal(4, 3, seed=1).abs().round()


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize(
    ("make", "y", "kind"),
    [
        (nn.MSELoss, normal(4, 3, seed=1), Gaussian),
        (nn.CrossEntropyLoss, LABELS, Categorical),
        (
            lambda reduction: nn.CrossEntropyLoss(
                WEIGHT, ignore_index=2, label_smoothing=0.2, reduction=reduction
            ),
            LABELS,
            Categorical,
        ),
        (nn.BCEWithLogitsLoss, COUNTS.clamp_max(1), Bernoulli),
        (nn.PoissonNLLLoss, COUNTS, Poisson),
        (lambda reduction: nn.PoissonNLLLoss(full=True, reduction=reduction), COUNTS, Poisson),
        (nn.HuberLoss, normal(4, 3, seed=1), LossFunction),
    ],
    ids=["mse", "ce", "ce with options", "bce", "poisson", "poisson, full", "huber"],
)
def test_torch_losses_have_the_curvature_of_their_sum(
    make: Callable[..., nn.Module], y: Tensor, kind: type[Likelihood], reduction: str
) -> None:
    f = normal(4, 3)
    given = make(reduction=reduction)
    likelihood = resolve(given)
    assert type(likelihood) is kind
    assert getattr(given, "reduction") == reduction  # noqa: B009
    likelihood.check(f, y)
    summed = make(reduction="sum")
    for n in range(4):
        one = (f[n : n + 1], y[n : n + 1])
        h: Any = torch.autograd.functional.hessian(lambda f, y=one[1]: summed(f, y), one[0])
        assert_close(gram(likelihood.columns(*one))[0], h.reshape(3, 3))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (F.mse_loss, Gaussian),
        (F.cross_entropy, Categorical),
        (F.binary_cross_entropy_with_logits, Bernoulli),
        (F.poisson_nll_loss, Poisson),
        (F.huber_loss, LossFunction),
        (lambda f, y: (f - y).pow(2).sum(), LossFunction),
    ],
)
def test_functions(function: Callable[..., Tensor], kind: type[Likelihood]) -> None:
    assert type(resolve(function)) is kind


def test_a_subclass_may_compute_something_else() -> None:
    class Focal(nn.CrossEntropyLoss):
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            return super().forward(2 * input, target)

    given = Focal(reduction="mean")
    likelihood = resolve(given)
    assert isinstance(likelihood, LossFunction)
    likelihood.check(normal(4, 3), LABELS)
    assert given.reduction == "mean"


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("laplace", ValueError, "likelihood = 'laplace': one of bernoulli, multilabel"),
        (None, TypeError, "likelihood is a NoneType"),
        (Gaussian, TypeError, "likelihood is the class Gaussian: pass an instance"),
        (nn.MSELoss, TypeError, "likelihood is the class MSELoss: pass an instance"),
        (nn.BCEWithLogitsLoss(weight=torch.ones(3)), ValueError, "BCEWithLogitsLoss has a weight"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), ValueError, "has a pos_weight"),
        (nn.PoissonNLLLoss(log_input=False), ValueError, "log_input=False"),
        (nn.GaussianNLLLoss(), ValueError, "use HeteroscedasticGaussian"),
        (F.gaussian_nll_loss, ValueError, "use HeteroscedasticGaussian"),
        (nn.NLLLoss(), ValueError, "NLLLoss is linear in log-probabilities"),
    ],
)
def test_what_has_no_likelihood(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(value)
