"""J v in one pass forward, and where that is not what a backward pass differentiates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.by_autograd.forward_mode import forward_product
from lapkernels.curvature.by_autograd.products import flat, graph_of
from lapkernels.curvature.data.batches import batches_of
from tests.curvature import oracle
from tests.curvature.zoo import ZOO, Network, params

EVERY_KIND = params("linear", "conv", "norm", "tied", "attention", "recurrent", "computed-weight")


@pytest.mark.parametrize("network", EVERY_KIND[1::3])
def test_forward_is_the_transpose_of_backward(network: Network) -> None:
    model, x = network.make()
    batch = next(batches_of([(x,)]))
    with graph_of(model, batch, dict(model.named_parameters()), network.output) as graph:
        graph.keep()
        v = graph.shaped(torch.randn(3, graph.size, dtype=torch.float64))
        try:
            together = forward_product(graph.run, graph.leaves, v)
        except NotImplementedError as error:
            pytest.skip(str(error))
        alone = forward_product(graph.run, graph.leaves, [part[1:2] for part in v])
        u = torch.randn(1, *graph.f.shape, dtype=torch.float64)
        pulled = graph.transposed(u)
    wanted = flat(v) @ flat(pulled)[0]
    torch.testing.assert_close((together * u).flatten(1).sum(1), wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(alone, together[1:2], rtol=1e-9, atol=1e-12)


class Rounded(torch.autograd.Function):
    """Passes gradients on as if nothing had been rounded."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


class Linear(nn.Module):
    def __init__(self, function: Callable[[Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _halved(net: Linear, x: Tensor) -> Tensor:
    y = net.linear(x)
    if y.requires_grad:
        y.register_hook(lambda g: g / 2)
    return y.tanh()


def _without_gradient(net: Linear, x: Tensor) -> Tensor:
    y = net.linear(x)
    with torch.no_grad():
        scale = y.norm(dim=1, keepdim=True)
    return y / scale


def _hooked() -> nn.Module:
    body = nn.Linear(3, 2)
    body.register_full_backward_hook(lambda module, into, out: tuple(g / 2 for g in into))
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), body)


def _net(forward: Callable[[Linear, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Linear(forward)


UNLIKE = {
    "tensor hook": _net(_halved),
    "no_grad": _net(_without_gradient),
    "custom function": _net(lambda net, x: Rounded.apply(net.linear(x)).tanh()),
    "module hook": _hooked,
}


@pytest.mark.parametrize("name", UNLIKE)
def test_backward_is_what_counts(name: str) -> None:
    model, x = UNLIKE[name]().double(), torch.randn(4, 3, dtype=torch.float64)
    y = torch.zeros(4, 2, dtype=torch.float64)
    matrix = oracle.ggn(model, x, y)
    for shape in ((len(matrix),), (len(matrix), 2)):
        v = torch.randn(shape, dtype=torch.float64)
        found = lk.ggn_product(model, (x, y), v)
        assert isinstance(found, Tensor)
        torch.testing.assert_close(found, matrix @ v)


@pytest.mark.parametrize("id", ["embedding-padding-idx", "embedding-negative-padding-idx"])
def test_padding_has_no_gradient(id: str) -> None:
    model, x = ZOO[id].make()
    y = oracle.labels(oracle.call(model, x).detach(), "gaussian")
    matrix = oracle.ggn(model, x, y)
    v = torch.randn(len(matrix), dtype=torch.float64)
    found = lk.ggn_product(model, (x, y), v)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, matrix @ v)
