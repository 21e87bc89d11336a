"""Models whose gradient autograd alone defines: scripted, complex, written by detached views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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


class Once(torch.autograd.Function):
    """A sine whose gradient has none of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0] * ctx.saved_tensors[0].cos()


class Skewed(torch.autograd.Function):
    """x * w, with gradients that are not those of a product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w = ctx.saved_tensors
        return 2 * grads[0] * w, (3 * grads[0] * x).sum(0)


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


def _halved(module: nn.Module, into: Any, out: Any) -> Any:
    return tuple(None if g is None else g / 2 for g in into)


def _hooked_module(net: Any, x: Tensor) -> Tensor:
    handle = net.last.register_full_backward_hook(_halved)
    try:
        return net.last(x.tanh())
    finally:
        handle.remove()


def _without_gradient(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.norm(dim=1, keepdim=True)
    return x / scale


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
        {"w": (3, 2)}),
    "complex-spectrum-of-a-weight": (
        lambda net, x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(net.w), n=4),
        {"w": (4,)}),
    "complex-polar": (lambda net, x: x * torch.polar(net.w, net.v).imag, {"w": (4,), "v": (4,)}),
    "complex-of-two-weights": (lambda net, x: (x * torch.complex(net.w, net.v)).abs(),
        {"w": (4,), "v": (4,)}),
    "complex-times-real-weight": (lambda net, x: torch.fft.irfft(torch.fft.rfft(x) * net.w, n=4),
        {"w": (3,)}),
    "complex-activations": (lambda net, x: torch.fft.rfft(x).abs() * net.w, {"w": (3,)}),
    "in-place-on-a-slice": (_in_place(lambda net, x: x[:, :2].mul_(net.w)), {"w": (2,)}),
    "in-place-on-a-view": (_in_place(lambda net, x: x.view(-1, 2, 2).mul_(net.w)), {"w": (2, 2)}),
    "in-place-with-a-dimension-more": (_in_place(lambda net, x: x.unsqueeze(1).add_(net.w)),
        {"w": (4,)}),
    "in-place-on-a-transpose": (_in_place(lambda net, x: x.t().mul_(net.w[:, None])), {"w": (4,)}),
    "in-place-product-on-a-view": (
        _in_place(lambda net, x: x[:, :2].addmm_(x.detach().clone(), net.w)), {"w": (4, 2)}),
    "written-by-data": (lambda net, x: (x.data.clamp_(-0.3, 0.3), x.tanh())[1], {}),
    "written-by-a-detached-view": (lambda net, x: (x.detach().clamp_(-0.3, 0.3), x)[1], {}),
    "straight-through": (lambda net, x: x + (x.round() - x).detach(), {}),
    "straight-through-function": (lambda net, x: _Clamped.apply(x) * net.w, {"w": (4,)}),
    "function-beside-a-skip": (lambda net, x: _Clamped.apply(x) + x * net.w, {"w": (4,)}),
    "function-twice": (lambda net, x: _Clamped.apply(_Clamped.apply(3 * x) * net.w), {"w": (4,)}),
    "function-of-a-parameter": (lambda net, x: Skewed.apply(x, net.w), {"w": (4,)}),
    "parameter-used-outside-too": (lambda net, x: Skewed.apply(x, net.w) + net.w * x, {"w": (4,)}),
    "no-gradient-region": (_without_gradient, {}),
    "hook-on-a-gradient": (_hooked, {}),
    "statistic-of-the-batch": (_statistic, {}),
    "quantile": (lambda net, x: x * torch.quantile(x, 0.3, dim=1, keepdim=True), {}),
    "foreach": (lambda net, x: torch._foreach_mul([x, x], 2.0)[0], {}),
    "hessian-inside": (
        lambda net, x: torch.func.vmap(torch.func.hessian(lambda t: (t**3).sum()))(x).sum(1), {}),
    "jvp-inside": (lambda net, x: torch.func.jvp(torch.sin, (x,), (x,))[1], {}),
    "gradient-inside": (
        lambda net, x: x * torch.func.vmap(torch.func.grad(lambda t: (t**3).sum()))(x), {}),
}  # fmt: skip


# Around the layers, and not between them.
WHOLE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "function-first": lambda net, x: net.last(net.first(_Clamped.apply(3 * x))),
    "function-last": lambda net, x: _Clamped.apply(net.last(net.first(x).tanh())),
    "hook-of-a-module": lambda net, x: _hooked_module(net, net.first(x)),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    middle, sizes = MIDDLES.get(name, (None, {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = {key: nn.Parameter(torch.randn(size)) for key, size in sizes.items()}
        run = WHOLE.get(name, lambda net, x: net.last(middle(net, net.first(x))))  # type: ignore[misc]
        model = Net(run, **weights)
        model.first, model.last = nn.Linear(3, 4), nn.LazyLinear(2)
        model(torch.randn(2, 3))
        return model.double(), torch.randn(4, 3, dtype=torch.float64)


# Refused; and torch differentiates polar backward in another way than forward, at negative lengths.
NO_PRODUCT = ("gradient-inside", "hessian-inside", "complex-polar")


@pytest.mark.filterwarnings("ignore:.*Samples run one at a time:RuntimeWarning")
@pytest.mark.parametrize("route", ["auto", "autograd"])
@pytest.mark.parametrize("name", [*MIDDLES, *WHOLE])
def test_is_as_autograd_has_it(name: str, route: Any) -> None:
    """Jacobians, diagonals, products and predictive variances, of a batch and of one sample."""
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
        for chosen in model._parameters.keys() | model._modules.keys():
            for key, value in lk.diag(model, x, params=chosen, route=route).items():
                torch.testing.assert_close(value, found[key], rtol=1e-10, atol=1e-12)
        if name not in NO_PRODUCT:
            v = torch.randn(rows.shape[2], 2, dtype=torch.float64)
            wanted = torch.einsum("ndp,ndq,qk->pk", rows, rows, v)
            product = lk.ggn_product(model, x, v)
            torch.testing.assert_close(product, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*Samples run one at a time:RuntimeWarning")
@pytest.mark.parametrize("name", ["scripted", "complex-weight", "written-by-data", "function-last"])
@pytest.mark.parametrize("method", ["approx", "mixed"])
def test_no_diagonal_passes(name: str, method: Any) -> None:
    with pytest.raises(lk.Refused, match="no diagonal can be passed"):
        lk.diag(*build(name), method=method)


@pytest.mark.parametrize("name", ["scripted", "in-place-on-a-slice", "statistic-of-the-batch"])
def test_the_batch_stays_together(name: str, recwarn: pytest.WarningsRecorder) -> None:
    """What the model is asked for needs no samples one at a time."""
    lk.diag(*build(name))
    assert not recwarn.list


def test_a_second_derivative_that_is_not_there_is_not_taken_for_zero() -> None:
    """Which is what autograd gives of a function that is once differentiable."""
    model = Net(lambda net, x: Once.apply(net.body(x)), body=nn.Linear(2, 1).double())
    same = Net(lambda net, x: torch.sin(net.body(x)), body=model.body)
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
    found, true = lk.diag(model, x), lk.diag(same, x)
    assert all(torch.allclose(found[name], true[name]) for name in true)
    data = x, torch.zeros(3, 1, dtype=torch.float64)
    for function in (lk.diag, lk.full):
        with pytest.raises(lk.Refused, match="@once_differentiable.*method='exact'"):
            function(model, data, method="hessian")
    with pytest.raises(lk.Refused, match="@once_differentiable"):
        lk.ggn_product(model, data, torch.ones(3, dtype=torch.float64))
    with pytest.raises(lk.Refused, match="@once_differentiable"):
        lk.low_rank(model, data, 1)
