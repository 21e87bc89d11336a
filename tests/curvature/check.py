"""Comparing the package with the oracles: noises that fit an output, errors, known gaps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor, nn

from lapkernels import likelihoods
from tests.curvature import oracle
from tests.curvature.zoo import ZOO, Network

# Networks that the package does not handle yet, by id, with the reason.
GAPS: dict[str, str] = {}


def networks(chosen: Iterable[Network], gaps: Mapping[str, str] = GAPS) -> list[ParameterSet]:
    """Parameters of a test; those with a gap are expected to fail, and must."""
    return [
        pytest.param(
            network,
            id=network.id,
            marks=[pytest.mark.xfail(strict=True, reason=gaps[network.id])]
            if network.id in gaps
            else [],
        )
        for network in chosen
    ]


@dataclass(frozen=True)
class Noise:
    """A likelihood of the package, and the same as a loss for the oracle, for outputs f."""

    name: str
    word: str
    likelihood: Callable[[Tensor], Any]
    loss: Callable[[Tensor], oracle.Loss]

    def fits(self, f: Tensor) -> bool:
        """Whether outputs of this shape can be meant: classes need a dimension of their own."""
        return self.word != "categorical" or (f.dim() > 1 and f.shape[1] > 1)

    def labels(self, f: Tensor) -> Tensor:
        return oracle.labels(f, self.word)


def _variance(f: Tensor) -> Tensor:
    """One for each output, different from each other."""
    return torch.linspace(0.5, 2.0, f[0].numel(), dtype=torch.float64).reshape(f.shape[1:])


def _plain(word: str) -> Noise:
    return Noise(word, word, lambda f: word, lambda f: oracle.LIKELIHOODS[word])


def _scaled(f: Tensor, y: Tensor, variance: Tensor | float) -> Tensor:
    return 0.5 * ((f - y).square() / variance).sum()


NOISES = {
    noise.name: noise
    for noise in (
        *(_plain(word) for word in oracle.LIKELIHOODS),
        Noise(
            "gaussian-variance",
            "gaussian",
            lambda f: likelihoods.Gaussian(variance=0.4),
            lambda f: lambda f, y: _scaled(f, y, 0.4),
        ),
        Noise(
            "gaussian-variance-of-each-output",
            "gaussian",
            lambda f: likelihoods.Gaussian(variance=_variance(f)),
            lambda f: lambda f, y: _scaled(f, y, _variance(f)),
        ),
    )
}


@dataclass(frozen=True)
class Problem:
    """A model with data and labels for a noise."""

    model: nn.Module
    x: oracle.Inputs
    y: Tensor
    f: Tensor
    noise: Noise
    output: oracle.Select | None = None

    @property
    def data(self) -> tuple[oracle.Inputs, Tensor]:
        return self.x, self.y

    @property
    def likelihood(self) -> Any:
        return self.noise.likelihood(self.f)

    @property
    def loss(self) -> oracle.Loss:
        return self.noise.loss(self.f)

    def exact(self) -> dict[str, Tensor]:
        matrix = oracle.ggn(self.model, self.x, self.y, self.loss, self.output)
        return oracle.diag(matrix, self.model)

    def empirical(self) -> dict[str, Tensor]:
        matrix = oracle.empirical(self.model, self.x, self.y, self.loss, self.output)
        return oracle.diag(matrix, self.model)


def problem(
    network: Network,
    noise: str = "gaussian",
    dtype: torch.dtype = torch.float64,
    samples: int | None = None,
) -> Problem:
    """A network of the zoo with labels; a noise that does not fit its output becomes Bernoulli."""
    model, x = network.make(dtype, samples)
    return of(model, x, noise, network.output)


def of(
    model: nn.Module,
    x: oracle.Inputs,
    noise: str = "gaussian",
    output: oracle.Select | None = None,
) -> Problem:
    """A model of one's own with labels."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        f = oracle.call(model, x, output)
    chosen = NOISES[noise] if NOISES[noise].fits(f) else NOISES["bernoulli"]
    return Problem(model, x, chosen.labels(f), f, chosen, output)


def rotated(network: Network, words: tuple[str, ...]) -> str:
    """One of some words for each network, all of them in turn over the zoo."""
    return words[list(ZOO).index(network.id) % len(words)]


def error(found: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> float:
    """Largest error of any parameter, relative to that parameter's own largest entry.

    A parameter whose true diagonal is zero but for rounding, such as a bias in front of a norm, has
    no scale of its own: its entries are what cancellation leaves, on both sides, and are compared
    with the largest entry of all parameters.
    """
    assert list(found) == list(true)
    overall = max(float(value.abs().max()) for value in true.values() if value.numel())
    eps = max(torch.finfo(value.dtype).eps for value in found.values())
    worst = 0.0
    for name, value in true.items():
        assert found[name].shape == value.shape
        if value.numel():
            own = float(value.abs().max())
            scale = own if own > 1e3 * eps * overall else overall
            worst = max(worst, float((found[name].double() - value).abs().max()) / (scale or 1.0))
    return worst


def assert_close(
    found: Mapping[str, Tensor], true: Mapping[str, Tensor], tolerance: float = 1e-10
) -> None:
    """Every parameter within the tolerance."""
    worst = error(found, true)
    assert worst <= tolerance, f"relative error {worst:.1e}"


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warning that samples run one at a time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*one at a time")
        yield
