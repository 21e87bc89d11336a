"""Comparing the package with the oracles: noises that fit an output, and errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapkernels as lk
from lapkernels import likelihoods
from tests.curvature import oracle
from tests.curvature.zoo import Network


@dataclass(frozen=True)
class Noise:
    """A likelihood of the package, and the same as a loss for the oracle, for outputs f."""

    name: str
    likelihood: Callable[[Tensor], Any]
    loss: Callable[[Tensor], oracle.Loss]
    labels: Callable[[Tensor], Tensor]
    # Whether outputs of this shape can be meant.
    fits: Callable[[Tensor], bool] = lambda f: True
    # Labels over which the Hessian is averaged, if it is not that of the true label.
    average: Callable[[Tensor], Sequence[Tensor]] | None = None

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """[N, D, D] at the outputs."""
        labels = [y] if self.average is None else self.average(f.double())
        found = [oracle.output_hessian(f, label, self.loss(f)) for label in labels]
        return torch.stack(found).mean(0)

    def score(self, f: Tensor, y: Tensor) -> Tensor:
        """[N, D]: the loss's gradient at the outputs."""
        f = f.double().detach().requires_grad_()
        y = y.double() if y.is_floating_point() else y
        return torch.autograd.grad(self.loss(f)(f, y), f)[0].reshape(len(f), -1)


def _variance(f: Tensor) -> Tensor:
    """One for each output, different from each other."""
    return torch.linspace(0.5, 2.0, f[0].numel(), dtype=torch.float64).reshape(f.shape[1:])


def _classes(f: Tensor) -> bool:
    """They need a dimension of their own."""
    return f.dim() > 1 and f.shape[1] > 1


def _plain(word: str) -> Noise:
    fits = _classes if word == "categorical" else lambda f: True
    loss = oracle.LIKELIHOODS[word]
    return Noise(word, lambda f: word, lambda f: loss, lambda f: oracle.labels(f, word), fits)


def _scaled(name: str, variance: Callable[[Tensor], Any]) -> Noise:
    def loss(f: Tensor) -> oracle.Loss:
        return lambda f, y: 0.5 * ((f - y).square() / variance(f)).sum()

    return Noise(
        name,
        lambda f: likelihoods.Gaussian(variance=variance(f)),
        loss,
        lambda f: oracle.labels(f, "gaussian"),
    )


IGNORED, SMOOTHING = 1000, 0.2


def _class_weights(f: Tensor) -> Tensor:
    return torch.linspace(0.5, 1.5, f.shape[1], dtype=torch.float64)


def _weighted_loss(f: Tensor) -> oracle.Loss:
    options: Any = {"ignore_index": IGNORED, "label_smoothing": SMOOTHING, "reduction": "sum"}
    weight = _class_weights(f)
    return lambda f, y: F.cross_entropy(f, y, weight.to(f), **options)


def _some_ignored(f: Tensor) -> Tensor:
    """The last label, and every fifth."""
    y = oracle.labels(f, "categorical")
    where = torch.arange(1, y.numel() + 1).reshape(y.shape)
    return y.masked_fill((where % 5 == 0) | (where == y.numel()), IGNORED)


def _heteroscedastic_loss(f: Tensor, y: Tensor) -> Tensor:
    mean, log_variance = f.chunk(2, 1)
    return 0.5 * (log_variance + (y - mean).square() / log_variance.exp()).sum()


def _deviations(f: Tensor) -> Sequence[Tensor]:
    """y = m + sd and m - sd: the Hessian is quadratic in y, so its average is the expectation."""
    mean, log_variance = f.chunk(2, 1)
    return [mean + log_variance.div(2).exp(), mean - log_variance.div(2).exp()]


def _joint_loss(f: Tensor, y: Tensor) -> Tensor:
    """Of the distance, so that the outputs of a sample are joined. Convex."""
    return (1 + (f - y).reshape(len(f), -1).square().sum(1)).sqrt().sum()


NOISES = {
    noise.name: noise
    for noise in (
        *(_plain(word) for word in oracle.LIKELIHOODS),
        _scaled("gaussian-variance", lambda f: 0.4),
        _scaled("gaussian-variance-of-each-output", _variance),
        Noise(
            "heteroscedastic",
            lambda f: "heteroscedastic",
            lambda f: _heteroscedastic_loss,
            lambda f: oracle.labels(f.chunk(2, 1)[0], "gaussian"),
            lambda f: f.dim() > 1 and f.shape[1] % 2 == 0,
            _deviations,
        ),
        Noise(
            "categorical-weighted",
            lambda f: likelihoods.Categorical(
                weight=_class_weights(f), ignore_index=IGNORED, label_smoothing=SMOOTHING
            ),
            _weighted_loss,
            _some_ignored,
            _classes,
        ),
        Noise(
            "loss",
            lambda f: likelihoods.LossFunction(_joint_loss),
            lambda f: _joint_loss,
            lambda f: oracle.labels(f, "gaussian"),
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

    def hessian(self) -> Tensor:
        """[N, D, D] at the outputs, one sample at a time in float64."""
        _, f = oracle.flat_jacobians(self.model, self.x, self.output)
        return self.noise.hessian(f, self.y)

    def exact(self) -> dict[str, Tensor]:
        j, f = oracle.flat_jacobians(self.model, self.x, self.output)
        h = self.noise.hessian(f, self.y)
        return oracle.diag(torch.einsum("ncp,ncd,ndq->pq", j, h, j), self.model)

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
    model: nn.Module, x: oracle.Inputs, noise: str = "gaussian", output: oracle.Select | None = None
) -> Problem:
    """A model of one's own with labels."""
    # Fused attention, which takes another way without gradients, rounds otherwise.
    with torch.random.fork_rng(devices=[]):
        f = oracle.call(model, x, output).detach()
    chosen = NOISES[noise] if NOISES[noise].fits(f) else NOISES["bernoulli"]
    return Problem(model, x, chosen.labels(f), f, chosen, output)


def error(found: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> float:
    """Largest error of any parameter, relative to that parameter's own largest entry.

    A parameter whose true diagonal is zero but for rounding, such as a bias in front of a norm, has
    no scale of its own: its entries are what cancellation leaves, on both sides, and are compared
    with the largest entry of all parameters.
    """
    assert list(found) == list(true)
    overall = max(float(value.abs().max()) for value in true.values() if value.numel())
    eps = max(torch.finfo(value.dtype).eps for value in found.values())
    rounding = max(1e3 * eps, 1e4 * torch.finfo(torch.float64).eps) * overall
    worst = 0.0
    for name, value in true.items():
        assert found[name].shape == value.shape
        if value.numel():
            own = float(value.abs().max())
            scale = own if own > rounding else overall
            worst = max(worst, float((found[name].double() - value).abs().max()) / (scale or 1.0))
    return worst


def close(found: Tensor, true: Tensor, tolerance: float = 1e-10) -> None:
    """Every entry within the tolerance, relative to the largest."""
    scale = float(true.abs().max()) if true.numel() else 0.0
    torch.testing.assert_close(found, true, rtol=tolerance, atol=tolerance * max(scale, 1e-12))


def made(network: Network, likelihood: str = "gaussian") -> tuple[nn.Module, Any, Tensor]:
    """A network with inputs and labels."""
    model, x = network.make()
    return model, x, oracle.labels(oracle.call(model, x, network.output).detach(), likelihood)


def assert_close(
    found: Mapping[str, Tensor], true: Mapping[str, Tensor], tolerance: float = 1e-10
) -> None:
    """Every parameter within the tolerance."""
    worst = error(found, true)
    assert worst <= tolerance, f"relative error {worst:.1e}"


def diagonals(
    model: nn.Module,
    x: oracle.Inputs,
    output: oracle.Select | None = None,
    methods: Sequence[Any] = ("exact", "approx"),
) -> dict[str, Tensor | str]:
    """By method and parameter, or the name of the error that refuses a method."""
    found: dict[str, Tensor | str] = {}
    for method in methods:
        try:
            named = lk.diag(model, (x, None), "gaussian", method, output=output)
            found.update({f"{method} {name}": value for name, value in named.items()})
        except (RuntimeError, ValueError, TypeError) as error:
            found[method] = type(error).__name__
    return found


def assert_same(
    found: Mapping[str, Tensor | str], known: Mapping[str, Tensor | str], tolerance: float = 0.0
) -> None:
    """The same refusals, and values within the tolerance: to the last bit without one."""
    assert found.keys() == known.keys()
    for name, value in known.items():
        one = found[name]
        if isinstance(value, str) or isinstance(one, str):
            assert one == value, name
        else:
            torch.testing.assert_close(one, value, rtol=tolerance, atol=tolerance)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warning that samples run one at a time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*one at a time")
        yield
