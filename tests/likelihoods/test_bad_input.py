"""Wrong arguments raise, and the message names them with what was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lapkernels.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    LossFunction,
    Poisson,
)
from tests.likelihoods.cases import Case, every_case, normal


@every_case
def test_outputs_that_are_not_finite(case: Case) -> None:
    for value in (float("nan"), float("inf"), -float("inf")):
        f = case.f.clone()
        f[(1, *[0] * (f.dim() - 1))] = value
        with pytest.raises(ValueError, match=rf"f\[1.*\] = {value}: finite values are needed"):
            case.likelihood.check(f, case.y)


@every_case
def test_outputs_that_are_no_floating_tensors(case: Case) -> None:
    wrong: Any
    for wrong, message in (
        (case.f.long(), "f has dtype torch.int64"),
        (case.f.to(torch.complex64), "f has dtype torch.complex64"),
        (case.f.tolist(), "f is a list"),
    ):
        with pytest.raises(TypeError, match=message):
            case.likelihood.check(wrong, case.y)
    with pytest.raises(ValueError, match="f is a scalar"):
        case.likelihood.check(torch.tensor(1.0), case.y)


@every_case
def test_targets_of_a_wrong_shape(case: Case) -> None:
    # [N] against [N, 1] would broadcast to [N, N] without a word.
    loss = isinstance(case.likelihood, LossFunction)
    for y in (case.y[1:], case.y.unsqueeze(0)):
        message = (
            "y of shape" if loss else rf"y has shape \({', '.join(map(str, y.shape))},?\), but"
        )
        for name in ("check", "nll", "score", "columns"):
            with pytest.raises(ValueError, match=message):
                getattr(case.likelihood, name)(case.f, y)


@every_case
def test_targets_that_are_no_real_tensors(case: Case) -> None:
    wrong: Any
    for wrong, message in (
        (case.y.tolist(), "y is a list"),
        (case.y.to(torch.complex64), "y has dtype torch.complex64"),
    ):
        with pytest.raises(TypeError, match=message):
            case.likelihood.check(case.f, wrong)


@every_case
def test_targets_and_vectors_on_another_device(case: Case) -> None:
    with pytest.raises(ValueError, match="y is on meta, but f is on cpu"):
        case.likelihood.check(case.f, case.y.to("meta"))
    with pytest.raises(ValueError, match="v is on meta, but f is on cpu"):
        case.likelihood.product(case.f, case.f.to("meta"), case.y)


@every_case
def test_vectors_that_do_not_fit(case: Case) -> None:
    for v in (case.f[1:], case.f[0]):
        with pytest.raises(ValueError, match="v has shape .* but it must end in"):
            case.likelihood.product(case.f, v, case.y)
    with pytest.raises(TypeError, match="v has dtype torch.float32, but f has torch.float64"):
        case.likelihood.product(case.f, case.f.float(), case.y)


F, LABELS = normal(3, 4), torch.tensor([0, 3, 1])
MANY = normal(2, 4, 2)


@pytest.mark.parametrize(
    ("likelihood", "f", "y", "message"),
    [
        (Gaussian(), F, F * float("nan"), r"y\[0, 0\] = nan and 11 more entries: finite"),
        (Gaussian(torch.ones(3)), F, F, r"variance has shape \(3,\).* the outputs \(4,\)"),
        (Gaussian(torch.ones(1, 3, 4)), F, F, r"variance has shape \(1, 3, 4\)"),
        (HeteroscedasticGaussian(), normal(3, 5), None, "f has 5 entries along dim = 1: an even"),
        (HeteroscedasticGaussian(0), F, None, "dim = 0 is no output dimension"),
        (HeteroscedasticGaussian(2), F, None, "dim = 2 is no output dimension"),
        (HeteroscedasticGaussian(), F.float() - 95, None, r"log-variance of f\[0, 0\] = -9"),
        (HeteroscedasticGaussian(), F.float() + 95, None, r"log-variance of f\[0, 0\] = 9"),
        (HeteroscedasticGaussian(), F, F[:, :2] / 0, r"y\[0, 0\] = .*inf"),
        (Bernoulli(), F, torch.full_like(F, 1.5), r"y\[0, 0\] = 1.5 .*targets in \[0, 1\]"),
        (Bernoulli(), F, torch.full_like(F, -0.5), r"y\[0, 0\] = -0.5"),
        (Bernoulli(), F, torch.full_like(F, float("nan")), r"y\[0, 0\] = nan"),
        (Poisson(), F, -torch.ones_like(F), r"y\[0, 0\] = -1.0 .*not negative"),
        (Poisson(), F, torch.ones_like(F) / 0, r"y\[0, 0\] = inf"),
        (Poisson(), F.float() + 95, None, r"f\[0, 0\] = 9.*the rate exp\(f\)"),
        (Categorical(), normal(3), None, r'f of shape \(3,\) has no classes: .*"bernoulli"'),
        (Categorical(), normal(3, 1), None, r'has 1 classes along dim = 1.*two .*"bernoulli"'),
        (Categorical(dim=2), normal(3, 4, 1), None, "has 1 classes along dim = 2"),
        (Categorical(dim=0), F, None, "dim = 0 is no output dimension"),
        (Categorical(dim=-2), F, None, "dim = -2 is no output dimension"),
        (Categorical(), F[:, :0], None, "has 0 classes along dim = 1"),
        (Categorical(), F, LABELS + 1, r"y\[1\] = 4: labels 0 to 3 or ignore_index = -100"),
        (Categorical(ignore_index=7), F, LABELS - 1, r"y\[0\] = -1: labels 0 to 3 .* = 7"),
        (Categorical(), MANY, torch.zeros(2, 4).long(), r"class labels .* the shape \(2, 2\)"),
        (Categorical(), F, F[:, 0], r"class probabilities .* have the shape \(3, 4\)"),
        (Categorical(), F, torch.full_like(F, 0.3), r"y.sum\(1\)\[0\] = 1.2.*add up to 1"),
        (Categorical(), F, torch.full_like(F, -0.3), r"y\[0, 0\] = -0.3 .*probabilities in"),
        (Categorical(weight=torch.ones(5)), F, LABELS, "weight has 5 classes, but f has 4"),
    ],
)
def test_values_out_of_range(
    likelihood: Likelihood, f: torch.Tensor, y: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        likelihood.check(f, y)


def test_labels_of_a_wrong_dtype() -> None:
    with pytest.raises(TypeError, match="y has dtype torch.bool: integer labels"):
        Categorical().check(F, LABELS > 0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Gaussian(0.0), ValueError, "variance = 0.0: a positive finite"),
        (lambda: Gaussian(-1), ValueError, "variance = -1: a positive finite"),
        (lambda: Gaussian(float("nan")), ValueError, "variance = nan"),
        (lambda: Gaussian(torch.tensor([1.0, -2.0])), ValueError, r"variance\[1\] = -2.0"),
        (lambda: Gaussian(1j), TypeError, "variance has dtype torch.complex64"),  # pyright: ignore
        (lambda: Categorical(label_smoothing=1.5), ValueError, "label_smoothing = 1.5"),
        (lambda: Categorical(label_smoothing=-0.1), ValueError, "label_smoothing = -0.1"),
        (lambda: Categorical(weight=torch.ones(2, 2)), TypeError, "weight = tensor"),
        (lambda: Categorical(weight=[1.0]), TypeError, r"weight = \[1.0\]"),  # pyright: ignore
        (lambda: Categorical(weight=torch.tensor([-1.0])), ValueError, r"weight\[0\] = -1.0"),
        (lambda: LossFunction(3), TypeError, "loss is a int: a callable"),  # pyright: ignore
    ],
)
def test_settings_out_of_range(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()
