"""Likelihoods with outputs, targets and torch's own loss, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    LossFunction,
    Poisson,
)


@dataclass(frozen=True)
class Case:
    """``loss(f, y)`` is the sum over samples that the likelihood's nll must equal."""

    name: str
    likelihood: Likelihood
    f: Tensor
    y: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def labels(f: Tensor, dim: int = 1, ignored: int | None = None) -> Tensor:
    """Labels of all classes, every fourth one ignored if so."""
    shape = [size for d, size in enumerate(f.shape) if d != dim % f.dim()]
    y = torch.arange(torch.Size(shape).numel()).reshape(shape) * 7 % f.shape[dim]
    return (
        y if ignored is None else y.where(torch.arange(y.numel()).reshape(shape) % 4 > 0, ignored)
    )


def gaussian(name: str, f: Tensor, variance: float | Tensor) -> Case:
    def loss(f: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (F.mse_loss(f, y, reduction="none") / variance).sum()

    return Case(name, Gaussian(variance), f, normal(*f.shape, seed=5), loss)


def heteroscedastic(name: str, f: Tensor, dim: int) -> Case:
    def loss(f: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = f.chunk(2, dim)
        return F.gaussian_nll_loss(mean, y, log_variance.exp(), reduction="sum", eps=1e-12)

    y = normal(*f.chunk(2, dim)[0].shape, seed=5)
    return Case(name, HeteroscedasticGaussian(dim), f, y, loss)


def categorical(
    name: str,
    f: Tensor,
    y: Tensor,
    dim: int = 1,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Case:
    def loss(f: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(
            f.movedim(dim, 1),
            y.movedim(dim, 1) if y.is_floating_point() else y,
            weight=weight,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            reduction="sum",
        )

    likelihood = Categorical(dim, weight, label_smoothing, ignore_index)
    return Case(name, likelihood, f, y, loss)


def bernoulli(name: str, f: Tensor, y: Tensor) -> Case:
    return Case(
        name,
        Bernoulli(),
        f,
        y,
        lambda f, y: F.binary_cross_entropy_with_logits(f, y, reduction="sum"),
    )


def poisson(name: str, f: Tensor) -> Case:
    return Case(
        name,
        Poisson(),
        f,
        normal(*f.shape, seed=5).abs().mul(3).round(),
        lambda f, y: F.poisson_nll_loss(f, y, reduction="sum"),
    )


def loss_function(name: str, f: Tensor, y: Tensor, loss: Callable[..., Tensor]) -> Case:
    return Case(name, LossFunction(loss), f, y, loss)


VECTOR, IMAGE, SEQUENCE = normal(4, 5), normal(3, 3, 2, 4), normal(3, 4, 5)
WEIGHT = torch.tensor([0.3, 1.7, 0.9], dtype=torch.float64)

CASES = (gaussian("gaussian", VECTOR, 1.0),
    gaussian("gaussian, one number a sample", normal(6), 0.3),
    gaussian("gaussian, noise of each output", VECTOR, normal(5).exp()),
    gaussian("gaussian, noise of each channel", IMAGE, normal(3, 1, 1).exp()),
    heteroscedastic("heteroscedastic", normal(4, 6), 1),
    heteroscedastic("heteroscedastic, images", normal(3, 4, 2, 3), 1),
    heteroscedastic("heteroscedastic, last", normal(3, 2, 4), -1),
    categorical("categorical", VECTOR, labels(VECTOR)),
    categorical("categorical, two classes", normal(5, 2), labels(normal(5, 2))),
    categorical("categorical, images", IMAGE, labels(IMAGE)),
    categorical("categorical, tokens", SEQUENCE, labels(SEQUENCE, 2), 2),
    categorical("categorical, tokens from behind", SEQUENCE, labels(SEQUENCE, -1), -1),
    categorical("categorical, ignored", IMAGE, labels(IMAGE, ignored=-100)),
    categorical("categorical, ignored class", IMAGE, labels(IMAGE, ignored=1), ignore_index=1,
        weight=WEIGHT),
    categorical("categorical, smoothed", VECTOR, labels(VECTOR), label_smoothing=0.2),
    categorical("categorical, weighted", IMAGE, labels(IMAGE), weight=WEIGHT),
    categorical("categorical, everything", IMAGE, labels(IMAGE, ignored=255), weight=WEIGHT,
        label_smoothing=0.3, ignore_index=255),
    categorical("categorical, probabilities", VECTOR, normal(4, 5, seed=9).softmax(1)),
    categorical("categorical, probabilities, everything", IMAGE.movedim(1, 3),
        normal(3, 2, 4, 3, seed=9).softmax(3), 3, weight=WEIGHT, label_smoothing=0.3),
    bernoulli("bernoulli", VECTOR, normal(4, 5, seed=3).gt(0).double()),
    bernoulli("bernoulli, images and soft", IMAGE, normal(*IMAGE.shape, seed=3).sigmoid()),
    poisson("poisson", VECTOR), poisson("poisson, images", IMAGE),
    loss_function("loss, huber", VECTOR, normal(4, 5, seed=3),
        lambda f, y: F.huber_loss(f, y, reduction="sum")),
    loss_function("loss, cross-entropy of images", IMAGE, labels(IMAGE),
        lambda f, y: F.cross_entropy(f, y, reduction="sum")))  # fmt: skip

by_name = {case.name: case for case in CASES}
every_case = pytest.mark.parametrize("case", CASES, ids=list(by_name))
