"""The whole curvature matrix against brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import oracle
from tests.curvature.zoo import ZOO, Network, params

GROUPS = ("linear", "conv", "transposed", "embedding", "norm", "tied", "computed-weight", "sizes")
SHORT = (
    *("linear-3d", "conv2d-groups", "conv-transpose2d-stride", "conv2d-reflect", "layer-norm"),
    *("module-twice", "weight-norm", "u-net", "embedding", "batch-norm2d", "scaled-dot-product"),
    *("gru", "encoder-layer", "low-rank-adapter", "function-functional-relu-in-place"),
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * float(b.abs().max()))


def made(network: Network, likelihood: str = "gaussian") -> tuple[nn.Module, Any, Tensor]:
    model, x = network.make()
    return model, x, oracle.labels(oracle.call(model, x, network.output).detach(), likelihood)


@pytest.mark.parametrize("network", params(*GROUPS))
def test_zoo(network: Network) -> None:
    model, x, y = made(network)
    found = lk.full(model, (x, y), output=network.output)
    close(found.matrix, oracle.ggn(model, x, y, output=network.output))
    assert found.slices == oracle.slices(model)
    name = next(iter(found.slices))
    assert found.block(name).shape[0] == oracle.trainable(model)[name].numel()


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical", "bernoulli", "poisson"])
@pytest.mark.parametrize("id", ["linear-positions-out", "image-to-image"])
def test_likelihoods(likelihood: str, id: str) -> None:
    model, x, y = made(ZOO[id], likelihood)
    close(lk.full(model, (x, y), likelihood).matrix, oracle.ggn(model, x, y, likelihood))
    close(
        lk.full(model, (x, y), likelihood, "empirical").matrix,
        oracle.empirical(model, x, y, likelihood),
    )
    close(
        lk.full(model, (x, y), likelihood, "hessian").matrix,
        oracle.hessian(model, x, y, likelihood),
    )


@pytest.mark.parametrize("id", SHORT)
def test_hessian(id: str) -> None:
    network = ZOO[id]
    model, x, y = made(network)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    found = lk.full(model, (x, y), method="hessian", output=network.output)
    close(found.matrix, oracle.hessian(model, x, y, output=network.output))
    for name, p in model.named_parameters():
        assert p.grad is None and p.equal(before[name])


@pytest.mark.parametrize("option", [{"route": "autograd"}, {"memory_budget": 1}], ids=str)
@pytest.mark.parametrize("id", ["conv2d-groups", "module-twice", "weight-norm", "encoder-layer"])
def test_routes_and_budgets(id: str, option: dict[str, Any]) -> None:
    model, x, y = made(ZOO[id])
    close(lk.full(model, (x, y), **option).matrix, oracle.ggn(model, x, y))


@pytest.mark.parametrize("method", ["exact", "empirical", "hessian"])
def test_merge(method: Any) -> None:
    model, _ = ZOO["conv2d-groups"].make()
    x = torch.randn(14, 1, 4, 4, dtype=torch.float64)
    y = torch.randn(14, 2, dtype=torch.float64)
    whole = lk.full(model, (x, y), method=method)
    parts = lk.full(model, list(zip(x.split(2), y.split(2), strict=True)), method=method)
    pieces = zip(x.split((4, 7, 3)), y.split((4, 7, 3)), strict=True)
    shards = [lk.full(model, piece, method=method) for piece in pieces]
    merged = shards[0].merge(shards[1]).merge(shards[2])
    assert whole.count == parts.count == merged.count == 14
    close(parts.matrix, whole.matrix)
    close(merged.matrix, whole.matrix)


def test_chosen_parameters() -> None:
    model, x, y = made(ZOO["conv2d-stride"])
    names = ["0.bias", "3.weight"]
    wanted = oracle.layer_block(oracle.ggn(model, x, y), model, names)
    close(lk.full(model, (x, y), params=names).matrix, wanted)
    wanted = oracle.layer_block(oracle.hessian(model, x, y), model, names)
    close(lk.full(model, (x, y), method="hessian", params=names).matrix, wanted)


def test_refusals() -> None:
    model, x, _ = made(ZOO["linear"])
    with pytest.raises(lk.Refused, match=r"2 KiB, more than limit=1 KiB.*\[16, 16\]"):
        lk.full(model, x, limit=1024)
    with pytest.raises(ValueError, match="needs labels"):
        lk.full(model, x, method="hessian")
    with pytest.raises(ValueError, match="method='approx' must be one of"):
        lk.full(model, x, method="approx")  # pyright: ignore[reportArgumentType]
