"""Jacobians and gradients of single samples against brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import oracle
from tests.curvature.check import NOISES, close
from tests.curvature.zoo import ZOO, Network, params

GROUPS = ("linear", "transposed", "embedding", "tied", "computed-weight")


def dense(network: Network, model: nn.Module, x: Any) -> Tensor:
    """[N, D, P] one backward pass after the other."""
    found, _ = oracle.jacobians(model, x, network.output)
    return torch.cat([g.flatten(2) for g in found.values()], 2)


@pytest.mark.parametrize("network", params(*GROUPS))
def test_zoo(network: Network) -> None:
    model, x = network.make()
    close(lk.jacobian(model, x, output=network.output), dense(network, model, x))


@pytest.mark.parametrize("option", [{"route": "autograd"}, {"memory_budget": 1}], ids=str)
@pytest.mark.parametrize("id", ["conv2d-groups", "module-twice", "image-to-image", "encoder-layer"])
def test_routes_and_budgets(id: str, option: dict[str, Any]) -> None:
    model, x = ZOO[id].make()
    close(lk.jacobian(model, x, **option), dense(ZOO[id], model, x))


def test_selected_outputs_and_batches() -> None:
    network = ZOO["image-to-image"]
    model, x = network.make(samples=5)
    assert isinstance(x, Tensor)
    whole = dense(network, model, x)
    picked = torch.randint(whole.shape[1], (5, 3))
    wanted = whole.gather(1, picked.unsqueeze(2).expand(-1, -1, whole.shape[2]))
    close(lk.jacobian(model, x, outputs=picked), wanted)
    close(lk.jacobian(model, list(x.split(2)), outputs=picked), wanted)
    close(lk.jacobian(model, list(x.split(2)), outputs=torch.tensor([4, 0])), whole[:, [4, 0]])
    with pytest.raises(ValueError, match="outputs has 4 rows, but there are more samples"):
        lk.jacobian(model, x, outputs=picked[:4])
    with pytest.raises(ValueError, match=f"outputs holds {whole.shape[1]}"):
        lk.jacobian(model, x, outputs=torch.tensor([whole.shape[1]]))


def test_chosen_and_unused_parameters() -> None:
    network = ZOO["conv2d-stride"]
    model, x = network.make()
    whole, slices = dense(network, model, x), oracle.slices(model)
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    some = lk.jacobian(model, x, params=["3.weight", "0.bias", "unused"])
    # In the model's order, whose own parameters come before those of its modules.
    wanted = torch.cat([whole[..., slices["0.bias"]], whole[..., slices["3.weight"]]], 2)
    assert not some[..., :2].any()
    close(some[..., 2:], wanted)


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical", "bernoulli", "poisson"])
def test_gradients(likelihood: str) -> None:
    network = ZOO["linear-positions-out"]
    model, x = network.make()
    assert isinstance(x, Tensor)
    f = oracle.call(model, x, network.output).detach()
    y = oracle.labels(f, likelihood)
    score = NOISES[likelihood].score(f, y)
    wanted = torch.einsum("nd,ndp->np", score, dense(network, model, x))
    close(lk.sample_gradients(model, (x, y), likelihood), wanted)
    close(lk.sample_gradients(model, [(x[:1], y[:1]), (x[1:], y[1:])], likelihood), wanted)
    with pytest.raises(ValueError, match="need labels"):
        lk.sample_gradients(model, x, likelihood)
