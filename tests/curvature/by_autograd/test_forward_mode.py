"""J v in one pass forward, and where that is not what a backward pass differentiates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

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


@pytest.mark.parametrize("id", ["embedding-padding-idx", "embedding-negative-padding-idx"])
def test_padding_has_no_gradient(id: str) -> None:
    model, x = ZOO[id].make()
    y = oracle.labels(oracle.call(model, x).detach(), "gaussian")
    matrix = oracle.ggn(model, x, y)
    v = torch.randn(len(matrix), dtype=torch.float64)
    found = lk.ggn_product(model, (x, y), v)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, matrix @ v)
