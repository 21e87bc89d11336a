"""Models whose gradient autograd alone defines: scripted, complex, written by detached views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import oracle
from tests.curvature.zoo.network import Net


@torch.jit.script
def _scripted(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


@torch.jit.script
def _scripted_gate(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x) * y


# From the second run on they are one node of autograd's, and detach what they are given.
for _ in range(3):
    some = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    _scripted_gate(_scripted(some), some).sum().backward()


class _Clamped(torch.autograd.Function):
    """Clamps, and passes gradients as if it did not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.clamp(-0.3, 0.3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def _in_place(write: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
    def middle(net: Any, x: Tensor) -> Tensor:
        x = x * 1
        write(net, x)
        return x

    return middle


def _hooked(net: Net, x: Tensor) -> Tensor:
    x = x * 1
    if x.requires_grad:
        x.register_hook(lambda grad: 2 * grad)
    return x.tanh()


def _statistic(net: Net, x: Tensor) -> Tensor:
    """Computes a number of the whole batch that nothing reads."""
    net.__dict__["seen"] = x.detach().T @ x.detach()
    return x.tanh()


MIDDLES: dict[str, tuple[Callable[[Any, Tensor], Tensor], dict[str, tuple[int, ...]]]] = {
    "scripted": (lambda net, x: _scripted(x), {}),
    "scripted-gate": (lambda net, x: _scripted_gate(x, _scripted(x)), {}),
    "scripted-with-a-weight": (lambda net, x: _scripted_gate(x, net.w.expand_as(x)), {"w": (4,)}),
    "complex-weight": (
        lambda net, x: torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(net.w), n=4),
        {"w": (3, 2)},
    ),
    "complex-spectrum-of-a-weight": (
        lambda net, x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(net.w), n=4),
        {"w": (4,)},
    ),
    "complex-polar": (lambda net, x: x * torch.polar(net.w, net.v).imag, {"w": (4,), "v": (4,)}),
    "complex-of-two-weights": (
        lambda net, x: (x * torch.complex(net.w, net.v)).abs(),
        {"w": (4,), "v": (4,)},
    ),
    "complex-times-real-weight": (
        lambda net, x: torch.fft.irfft(torch.fft.rfft(x) * net.w, n=4),
        {"w": (3,)},
    ),
    "complex-activations": (lambda net, x: torch.fft.rfft(x).abs() * net.w, {"w": (3,)}),
    "in-place-on-a-slice": (_in_place(lambda net, x: x[:, :2].mul_(net.w)), {"w": (2,)}),
    "in-place-on-a-view": (_in_place(lambda net, x: x.view(-1, 2, 2).mul_(net.w)), {"w": (2, 2)}),
    "in-place-with-a-dimension-more": (
        _in_place(lambda net, x: x.unsqueeze(1).add_(net.w)),
        {"w": (4,)},
    ),
    "in-place-on-a-transpose": (_in_place(lambda net, x: x.t().mul_(net.w[:, None])), {"w": (4,)}),
    "in-place-product-on-a-view": (
        _in_place(lambda net, x: x[:, :2].addmm_(x.detach().clone(), net.w)),
        {"w": (4, 2)},
    ),
    "written-by-data": (lambda net, x: (x.data.clamp_(-0.3, 0.3), x.tanh())[1], {}),
    "written-by-a-detached-view": (lambda net, x: (x.detach().clamp_(-0.3, 0.3), x)[1], {}),
    "straight-through": (lambda net, x: x + (x.round() - x).detach(), {}),
    "straight-through-function": (lambda net, x: _Clamped.apply(x) * net.w, {"w": (4,)}),
    "hook-on-a-gradient": (_hooked, {}),
    "statistic-of-the-batch": (_statistic, {}),
    "quantile": (lambda net, x: x * torch.quantile(x, 0.3, dim=1, keepdim=True), {}),
    "foreach": (lambda net, x: torch._foreach_mul([x, x], 2.0)[0], {}),
    "gradient-inside": (
        lambda net, x: x * torch.func.vmap(torch.func.grad(lambda t: (t**3).sum()))(x),
        {},
    ),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    middle, sizes = MIDDLES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = {key: nn.Parameter(torch.randn(size)) for key, size in sizes.items()}
        model = Net(lambda net, x: net.last(middle(net, net.first(x))), **weights)
        model.first, model.last = nn.Linear(3, 4), nn.LazyLinear(2)
        model(torch.randn(2, 3))
        return model.double(), torch.randn(4, 3, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:.*Samples run one at a time:RuntimeWarning")
@pytest.mark.parametrize("route", ["auto", "autograd"])
@pytest.mark.parametrize("name", MIDDLES)
def test_is_as_autograd_has_it(name: str, route: Any) -> None:
    """Jacobians, diagonals and predictive variances, of a batch and of one sample."""
    model, batch = build(name)
    for x in (batch, batch[:1]):
        # By name, as the parameters of LazyLinear come last.
        known, _ = oracle.jacobians(model, x)
        found = lk.diag(model, x, route=route)
        ones = {key: torch.ones_like(value) for key, value in found.items()}
        variance = lk.predictive_variance(model, x, ones, route=route)
        rows = lk.jacobian(model, x, route=route)
        torch.testing.assert_close(
            rows, torch.cat([known[key].flatten(2) for key in found], 2), rtol=1e-10, atol=1e-12
        )
        for key, j in known.items():
            torch.testing.assert_close(found[key], j.square().sum((0, 1)), rtol=1e-10, atol=1e-12)
        total = sum(j.square().flatten(2).sum(2) for j in known.values())
        torch.testing.assert_close(variance, total, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*Samples run one at a time:RuntimeWarning")
@pytest.mark.parametrize("name", ["scripted", "complex-weight", "written-by-data"])
@pytest.mark.parametrize("method", ["approx", "mixed"])
def test_no_diagonal_passes(name: str, method: Any) -> None:
    with pytest.raises(lk.Refused, match="no diagonal can be passed"):
        lk.diag(*build(name), method=method)


@pytest.mark.parametrize("name", ["scripted", "in-place-on-a-slice", "statistic-of-the-batch"])
def test_the_batch_stays_together(name: str, recwarn: pytest.WarningsRecorder) -> None:
    """What the model is asked for needs no samples one at a time."""
    lk.diag(*build(name))
    assert not recwarn.list
