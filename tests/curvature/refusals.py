"""Models that must be refused, and unusual ones that must be handled as autograd handles them.

`refused` are cases where a number would be silently wrong: a sample's output depends on other
samples, on chance or on nothing that can be differentiated.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from _pytest.mark import ParameterSet
from pytest import param
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.curvature.oracle import Inputs
from tests.curvature.zoo.network import Net, parameter


@dataclass(frozen=True)
class Case:
    """`build` gives a model in eval mode unless `train`; `words` is a pattern for the message."""

    id: str
    build: Callable[[], nn.Module]
    must: Literal["refuse", "handle"]
    words: str = ""
    inputs: tuple[int, ...] | Callable[[int], Inputs] = (3,)
    train: bool = False

    def make(self, samples: int = 3) -> tuple[nn.Module, Inputs]:
        """The model and a batch in float64, the same on every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.id.encode()))
            model = self.build().train(self.train)
            if callable(self.inputs):
                return model, self.inputs(samples)
            return model, torch.randn(samples, *self.inputs, dtype=torch.float64)


def _linear(inputs: int = 3, outputs: int = 3) -> nn.Linear:
    return nn.Linear(inputs, outputs, dtype=torch.float64)


def _chain(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(_linear(), *middle, _linear(3, 2)).double()


def _then(function: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    """A linear layer, and `function` of what it gives."""
    return lambda: Net(lambda net, x: function(net.layer(x)), layer=_linear())


def _inside(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """`function` between two linear layers."""
    return lambda: Net(
        lambda net, x: net.head(function(net.stem(x))), stem=_linear(), head=_linear(3, 2)
    )


def _with_value(value: float) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = _chain(nn.Tanh())
        with torch.no_grad():
            model.get_parameter("2.weight")[0, 0] = value
        return model

    return build


class _StraightThrough(torch.autograd.Function):
    """Rounds, and is the identity to gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class _ReversedGradient(torch.autograd.Function):
    """The identity, whose gradient has a factor of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -ctx.factor * gradients[0], None


def _apply(function: type[torch.autograd.Function], *others: Any) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        found = function.apply(x, *others)
        assert isinstance(found, Tensor)
        return found

    return run


def _half_without_gradient(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        features = torch.tanh(net.stem(x))
    return net.head(features) + net.side(x)


def _all_without_gradient(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net.layer(x)


def _frozen() -> nn.Module:
    return _chain(nn.Tanh()).requires_grad_(False)


def _attend_over_samples(net: Any, x: Tensor) -> Tensor:
    """The sample dimension where the layer expects tokens."""
    return net.attention(x, x, x)[0]


def _embedding_by_frequency() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(4, 3, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(6, 2)
    ).double()


CASES = [
    # Samples that see each other.
    Case("batch-norm-train", lambda: _chain(nn.BatchNorm1d(3)), "refuse", "eval", train=True),
    Case("batch-norm-without-running-statistics",
        lambda: _chain(nn.BatchNorm1d(3, track_running_stats=False)), "refuse",
        "statistics|sample"),
    Case("batch-norm-function", _inside(lambda x: F.batch_norm(x, None, None, training=True)),
        "refuse"),
    Case("batch-norm2d-train",
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2)).double(), "refuse", "eval",
        (1, 3, 3), train=True),
    Case("scaled-by-the-largest-of-all", _inside(lambda x: x / x.max()), "refuse", "sample"),
    Case("centred-over-samples", _inside(lambda x: x - x.mean(0)), "refuse", "sample"),
    Case("softmax-over-samples", _inside(lambda x: x.softmax(0)), "refuse", "sample"),
    Case("cumulative-over-samples", _inside(lambda x: x.cumsum(0)), "refuse", "sample"),
    Case("rolled-over-samples", _inside(lambda x: x + x.roll(1, 0)), "refuse", "sample"),
    Case("gram-of-samples", _inside(lambda x: (x @ x.T) @ x), "refuse", "sample"),
    Case("attention-over-samples",
        lambda: Net(_attend_over_samples, attention=nn.MultiheadAttention(4, 2)).double(), "refuse",
        "sample", (3, 4)),
    Case("embedding-scaled-by-frequency", _embedding_by_frequency, "refuse", "scale_grad_by_freq",
        lambda n: torch.arange(2 * n).reshape(n, 2) % 3),
    # Chance.
    Case("dropout-train", lambda: _chain(nn.Dropout(0.5)), "refuse", "eval", train=True),
    Case("dropout2d-train", lambda: nn.Sequential(nn.Conv2d(1, 4, 2), nn.Dropout2d(0.5)).double(),
        "refuse", "eval", (1, 3, 3), train=True),
    Case("rrelu-train", lambda: _chain(nn.RReLU()), "refuse", "eval", train=True),
    Case("dropout-function-always-on", _inside(lambda x: F.dropout(x, 0.5)), "refuse", "random"),
    Case("noise-added", _inside(lambda x: x + torch.randn_like(x)), "refuse", "random"),
    Case("multihead-dropout-train",
        lambda: Net(
            lambda net, x: net.attention(x, x, x)[0],
            attention=nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True),
        ).double(), "refuse", "eval", (3, 4), train=True),
    # Every forward pass moves its estimate of the norm.
    Case("spectral-norm-train", lambda: _chain(parametrizations.spectral_norm(nn.Linear(3, 3))),
        "refuse", "eval", train=True),
    # Outputs that are not one row for each sample.
    Case("output-is-a-loss", _then(lambda f: f.square().mean()), "refuse", "sample"),
    Case("output-summed-over-samples", _then(lambda f: f.sum(0)), "refuse", "sample"),
    Case("output-with-a-row-too-many", _then(lambda f: torch.cat([f, f[:1]])), "refuse", "sample"),
    Case("output-samples-second", _then(lambda f: f.transpose(0, 1)), "refuse", "sample", (4, 3)),
    Case("output-samples-second-as-many-as-tokens", _then(lambda f: f.transpose(0, 1)), "refuse",
        "sample", (3, 3)),
    Case("output-is-a-tuple", _then(lambda f: (f, f)), "refuse", "output"),
    Case("output-is-a-dict", _then(lambda f: {"f": f}), "refuse", "output"),
    Case("output-is-integer", _then(lambda f: f.argmax(1, keepdim=True)), "refuse", "float|real"),
    Case("output-is-complex", _then(lambda f: f * 1j), "refuse", "complex"),
    Case("output-without-gradient", lambda: Net(_all_without_gradient, layer=_linear()), "refuse",
        "does not depend"),
    Case("output-detached", _then(lambda f: f.detach()), "refuse", "does not depend"),
    # Parameters.
    Case("no-parameters", lambda: nn.Sequential(nn.Tanh(), nn.Flatten()), "refuse", "parameter"),
    Case("all-parameters-frozen", _frozen, "refuse", "parameter"),
    Case("complex-parameters",
        lambda: Net(lambda net, x: (x.to(net.w.dtype) @ net.w).abs(),
            w=nn.Parameter(torch.randn(3, 2, dtype=torch.complex128))), "refuse", "complex"),
    Case("parameter-nan", _with_value(float("nan")), "refuse", "finite|NaN|nan"),
    Case("parameter-infinite", _with_value(float("inf")), "refuse", "finite|inf"),
    Case("parameters-not-yet-made", lambda: nn.Sequential(nn.LazyLinear(2)).double(), "refuse",
        "parameter"),
    Case("scripted-part", lambda: _chain(_scripted(nn.Sequential(nn.Tanh(), _linear()))), "refuse",
        "scripted"),
    Case("scripted-root", lambda: _scripted(_chain(nn.Tanh())), "refuse", "scripted or traced"),
    Case("traced-root", lambda: _traced(_chain(nn.Tanh()), torch.randn(2, 3).double()), "refuse",
        "scripted or traced"),
    # Inputs.
    Case("input-nan", lambda: _chain(nn.Tanh()), "refuse", "finite|NaN|nan",
        lambda n: torch.full((n, 3), float("nan"), dtype=torch.float64)),
    Case("inputs-of-different-numbers",
        lambda: Net(lambda net, x, z: net.layer(x) * z.sum(), layer=_linear()), "refuse", "sample",
        lambda n: (torch.randn(n, 3).double(), torch.randn(n + 1, 3).double())),
    # Autograd's own gradient is the definition.
    Case("straight-through", _inside(_apply(_StraightThrough)), "handle"),
    Case("gradient-reversed", _inside(_apply(_ReversedGradient, 2.0)), "handle"),
    Case("detached-in-the-middle", _inside(lambda x: x * torch.tanh(x).detach()), "handle"),
    Case("detached-scale", _inside(lambda x: x / x.detach().norm(dim=1, keepdim=True)), "handle"),
    Case("straight-through-by-detach", _inside(lambda x: x + (x.round() - x).detach()), "handle"),
    Case("no-gradient-region",
        lambda: Net(_half_without_gradient, stem=_linear(), head=_linear(3, 2), side=_linear(3, 2)),
        "handle"),
    Case("inference-region",
        lambda: Net(_half_in_inference_mode, stem=_linear(), head=_linear(3, 2)), "handle"),
    # Forces of an energy: weights come back out of what autograd has saved.
    Case("autograd-inside",
        lambda: Net(_force, between=nn.Tanh(), stem=_linear(), head=_linear(3, 1)), "handle"),
    Case("autograd-inside-from-inputs",
        lambda: Net(_force, between=nn.Softplus(), stem=_linear(), head=_linear(3, 1)), "handle"),
    # A hook on a tensor is part of what autograd computes.
    Case("gradient-hook", lambda: Net(_hooked, stem=_linear(), head=_linear(3, 2)), "handle"),
    # Train mode is no reason to refuse where it changes nothing.
    Case("train-without-effect", lambda: _chain(nn.Tanh()), "handle", train=True),
    Case("dropout-zero-train", lambda: _chain(nn.Dropout(0.0)), "handle", train=True),
    Case("layer-norm-train", lambda: _chain(nn.LayerNorm(3)), "handle", train=True),
    Case("weight-norm-train", lambda: _chain(parametrizations.weight_norm(nn.Linear(3, 3))),
        "handle", train=True),
    Case("sample-statistics-not-across-samples", _inside(lambda x: x - x.mean(1, keepdim=True)),
        "handle"),
    Case("constant-over-samples",
        lambda: Net(lambda net, x: net.shift.expand(len(x), -1), shift=parameter(2)).double(),
        "handle"),
]  # fmt: skip


def _traced(module: nn.Module, x: Tensor) -> Any:
    return torch.jit.trace(module, x)


def _scripted(module: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(module)


def _half_in_inference_mode(net: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        h = net.stem(x)
    return net.head(torch.tanh(h.clone()))


def _force(net: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        energy = net.head(net.between(net.stem(x)))
        return torch.autograd.grad(energy, x, torch.ones_like(energy), create_graph=True)[0]


def _hooked(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    if h.requires_grad:
        h.register_hook(lambda g: 0.5 * g)
    return net.head(torch.tanh(h))


def params(must: Literal["refuse", "handle"]) -> list[ParameterSet]:
    """The cases that must be refused, or handled, for `pytest.mark.parametrize`."""
    return [param(case, id=case.id) for case in CASES if case.must == must]
