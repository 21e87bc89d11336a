"""Custom autograd Functions: autograd's own gradient counts, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import lapkernels as lk
from tests.curvature import oracle
from tests.curvature.zoo import Net


class Rounded(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
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


class Network(nn.Module):
    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 2), nn.Linear(2, 2)
        self.w = nn.Parameter(torch.full((2,), 0.7))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


NETWORKS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "last": lambda net, x: Rounded.apply(net.last(net.first(x).tanh()) * net.w),
    "first": lambda net, x: net.last(net.first(Rounded.apply(3 * x) * 1.0) * net.w),
    "middle": lambda net, x: net.last(Rounded.apply(3 * net.first(x)) * net.w),
    "twice": lambda net, x: Rounded.apply(net.last(Rounded.apply(net.first(x) * net.w)).tanh()),
    "skip": lambda net, x: net.last(Rounded.apply(net.first(x)) + net.first(x) * net.w),
    "with-a-parameter": lambda net, x: net.last(Skewed.apply(net.first(x), net.w)),
    "parameter-used-outside-too": lambda net, x: net.last(
        Skewed.apply(net.first(x), net.w) + net.w * net.first(x)
    ),
}


@pytest.mark.parametrize("params", [None, "first", "last", "w"])
@pytest.mark.parametrize("run", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.filterwarnings("ignore:.*one at a time:RuntimeWarning")
def test_autograds_own_gradient_counts(
    run: Callable[[Any, Tensor], Tensor], params: str | None
) -> None:
    model, x = Network(run).double(), torch.randn(4, 3, dtype=torch.float64)
    jacobians, _ = oracle.jacobians(model, x)
    diagonal = lk.diag(model, x, params=params)
    for name, value in diagonal.items():
        expected = jacobians[name].square().sum((0, 1))
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["approx", "mixed"])
@pytest.mark.filterwarnings("ignore:.*one at a time:RuntimeWarning")
def test_no_diagonal_passes_a_custom_gradient(method: Any) -> None:
    model, x = Network(NETWORKS["middle"]), torch.randn(4, 3)
    with pytest.raises(lk.Refused, match=r"custom autograd\.Function.*'exact'"):
        lk.diag(model, x, method=method)


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
