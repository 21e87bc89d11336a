"""Weights made of parameters: every quantity against dense Jacobians, at full batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import lapkernels as lk
from tests.curvature import oracle
from tests.curvature.zoo.network import Net, parameter


def _standardised(net: Any) -> Tensor:
    """Each channel standardised, as the convolutions of ResNets without batch norms do it."""
    weight = net.conv.weight
    flat, gain = weight.reshape(1, len(weight), -1), (net.gain * 0.7).view(-1)
    flat = F.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0, eps=1e-4)
    return flat.reshape_as(weight)


def _conv(**options: Any) -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        conv = net.conv
        z = F.conv2d(x, _standardised(net), conv.bias, conv.stride, conv.padding, 1, conv.groups)
        return net.head(torch.tanh(z).mean((2, 3)))

    conv = nn.Conv2d(8, 4, 3, **options)
    return Net(run, conv=conv, gain=parameter(4, 1, 1, 1), head=nn.Linear(4, 3))


def _normed(layer: nn.Module) -> nn.Module:
    return parametrizations.weight_norm(layer)


def _adapted(net: Any, x: Tensor) -> Tensor:
    first = F.linear(x, net.frozen + 0.5 * (net.b @ net.a))
    return torch.tanh(first) @ torch.addmm(net.c, net.d, net.e)


def _positions(net: Any, x: Tensor) -> Tensor:
    """Token types by indices for each sample, positions for all, both of buffers."""
    h = net.table(x) + net.types(net.zeros[:, : x.shape[1]].expand(len(x), -1))
    h = h + net.places(net.order[:, : x.shape[1]])
    bias = net.bias[net.relative]
    return net.head(torch.softmax(h @ h.mT + bias, -1) @ torch.tanh(h)).mean(1)


def _tokens(n: int) -> Tensor:
    return torch.randint(0, 5, (n, 3))


def _features(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "standardised": (lambda: _conv(padding=1), _features(8, 4, 4)),
    "standardised-groups": (lambda: _conv(groups=2, stride=2), _features(8, 5, 5)),
    "weight-norm": (
        lambda: nn.Sequential(_normed(nn.Linear(20, 5)), nn.Tanh(), nn.Linear(5, 2)),
        _features(20),
    ),
    "weight-norm-positions": (
        lambda: nn.Sequential(_normed(nn.Linear(20, 5)), nn.Tanh(), nn.Flatten(), nn.Linear(15, 2)),
        _features(3, 20),
    ),
    "weight-norm-conv": (
        lambda: nn.Sequential(
            _normed(nn.Conv1d(6, 4, 3)), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)
        ),
        _features(6, 4),
    ),
    "adapter": (
        lambda: Net(
            _adapted, frozen=torch.randn(6, 5), b=parameter(6, 2), a=parameter(2, 5),
            c=parameter(6, 3), d=parameter(6, 2), e=parameter(2, 3),
        ),
        _features(5),
    ),
    "scaled": (
        lambda: Net(
            lambda net, x: net.head(F.linear(x, net.weight * net.mask).tanh() * net.scale.exp()),
            weight=parameter(4, 5), mask=torch.rand(4, 5), scale=parameter(4), head=nn.Linear(4, 2),
        ),
        _features(5),
    ),
    "positions": (
        lambda: Net(
            _positions,
            table=nn.Embedding(5, 4), types=nn.Embedding(2, 4), places=nn.Embedding(6, 4),
            bias=parameter(5), head=nn.Linear(4, 2), zeros=torch.zeros(1, 6, dtype=torch.long),
            order=torch.arange(6)[None],
            relative=torch.arange(3)[:, None] - torch.arange(3)[None] + 2,
        ),
        _tokens,
    ),
}  # fmt: skip


def _made(id: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model, a batch, and J [N, D, P]."""
    torch.manual_seed(0)
    build, inputs = MODELS[id]
    model, x = build().double().eval(), inputs(4)
    x = x.double() if x.is_floating_point() else x
    return model, x, oracle.flat_jacobians(model, x)[0]


@pytest.mark.parametrize("id", MODELS)
@pytest.mark.parametrize("budget", [None, 1])
def test_quantities(id: str, budget: int | None) -> None:
    model, x, j = _made(id)
    options: dict[str, Any] = {"memory_budget": budget}
    size = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with catch_warnings():
        simplefilter("error", RuntimeWarning)
        found = lk.diag(model, x, "gaussian", **options)
        _close(found.vector(), j.square().sum((0, 1)))
        mixed = lk.diag(model, x, "gaussian", "mixed", threshold=float("inf"), **options)
        _close(mixed.vector(), j.square().sum((0, 1)))
        variance = {name: torch.rand_like(p) for name, p in size.items()}
        flat = torch.cat([one.flatten() for one in variance.values()])
        _close(lk.predictive_variance(model, x, variance, **options), j.square() @ flat)
        covariance = lk.predictive_covariance(model, x, variance, **options)
        _close(covariance, (j * flat) @ j.mT)
        _close(lk.full(model, x, "gaussian").matrix, torch.einsum("ndp,ndq->pq", j, j))
        for method in ("mc", "approx", "empirical"):
            lk.diag(model, (x, torch.zeros(j.shape[:2]).to(j)), "gaussian", method)
        lk.propagated_variance(model, x, variance)


def _close(found: Tensor, true: Tensor) -> None:
    torch.testing.assert_close(found, true, rtol=1e-10, atol=1e-12 * float(true.abs().max()))


@pytest.mark.parametrize("id", ["standardised", "weight-norm", "adapter", "scaled"])
def test_no_jacobian_is_made(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These go by sums over the layer's own gradients."""
    monkeypatch.setattr("lapkernels.curvature.backward.columns.pull_weights", None)
    model, x, j = _made(id)
    found = lk.diag(model, x, "gaussian")
    _close(found.vector(), j.square().sum((0, 1)))


def test_factors_of_a_product_are_layers() -> None:
    """As if they were applied one after the other."""
    torch.manual_seed(0)
    a, b, x = nn.Linear(5, 2, bias=False), nn.Linear(2, 4, bias=False), torch.randn(3, 5)
    apart = nn.Sequential(a, b).double()
    joint = Net(lambda net, x: F.linear(x, net.b.weight @ net.a.weight), a=a, b=b).double()
    true = lk.kron(apart, x.double(), "gaussian", method="exact")
    found = lk.kron(joint, x.double(), "gaussian", method="exact")
    for own, other in (("a.weight", "0.weight"), ("b.weight", "1.weight")):
        _close(found[own].output, true[other].output)
        inputs, expected = found[own].input, true[other].input
        assert inputs is not None and expected is not None
        _close(inputs, expected)
