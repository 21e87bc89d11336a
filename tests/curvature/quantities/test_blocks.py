"""Blocks of the Gauss-Newton matrix against those cut out of the whole one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import oracle
from tests.curvature.zoo import ZOO, Network, params

GROUPS = ("linear", "conv", "transposed", "norm", "image-output", "tied", "several-outputs")
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def close(a: Tensor, b: Tensor, whole: Tensor | None = None) -> None:
    scale = float((b if whole is None else whole).abs().max())
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * scale)


def made(network: Network, likelihood: str = "gaussian") -> tuple[nn.Module, Any, Tensor]:
    model, x = network.make()
    return model, x, oracle.labels(oracle.call(model, x, network.output).detach(), likelihood)


def groups_of(model: nn.Module, name: str) -> int | None:
    """Groups of the transposed convolution that a weight belongs to."""
    module = model.get_submodule(name.rpartition(".")[0])
    return module.groups if isinstance(module, TRANSPOSED) and name.endswith("weight") else None


def check(model: nn.Module, matrix: Tensor, found: lk.Blocks) -> None:
    parameters = oracle.trainable(model)
    assert [name for names in found.names.values() for name in names] == list(parameters)
    for key, names in found.names.items():
        if found.by in ("layer", "parameter"):
            close(found[key], oracle.layer_block(matrix, model, names), matrix)
        elif parameters[key].dim() < 2:
            wanted = oracle.block(matrix, model, key).diagonal()
            close(found[key], wanted.reshape(-1, 1, 1), matrix)
        elif found.by == "kernel":
            close(found[key], oracle.kernel_blocks(matrix, model, key), matrix)
        else:
            wanted = oracle.neuron_blocks(matrix, model, key, groups_of(model, key))
            close(found[key], wanted, matrix)


@pytest.mark.parametrize("network", params(*GROUPS))
def test_zoo(network: Network) -> None:
    model, x, y = made(network)
    matrix = oracle.ggn(model, x, y, output=network.output)
    for by in ("layer", "parameter", "kernel", "neuron"):
        if by == "neuron" and network.id in ("autoencoder-tied", "siamese"):
            continue
        check(model, matrix, lk.blocks(model, (x, y), by=by, output=network.output))


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "poisson"])
def test_likelihoods(likelihood: str) -> None:
    model, x, y = made(ZOO["u-net"], likelihood)
    exact, empirical = (f(model, x, y, likelihood) for f in (oracle.ggn, oracle.empirical))
    for by in ("layer", "neuron"):
        check(model, exact, lk.blocks(model, (x, y), likelihood, by=by))
        check(model, empirical, lk.blocks(model, (x, y), likelihood, "empirical", by))


@pytest.mark.parametrize("by", ["layer", "parameter", "kernel", "neuron"])
@pytest.mark.parametrize("option", [{"route": "autograd"}, {"memory_budget": 1}], ids=str)
def test_routes_and_budgets(by: Any, option: dict[str, Any]) -> None:
    for id in ("conv2d-groups", "module-twice", "weight-norm"):
        model, x, y = made(ZOO[id])
        check(model, oracle.ggn(model, x, y), lk.blocks(model, (x, y), by=by, **option))


def test_neurons_of_a_stored_transpose() -> None:
    model, x, y = made(ZOO["matrix-product"])
    found = lk.blocks(model, (x, y), by="neuron")["w"]
    block = oracle.block(oracle.ggn(model, x, y), model, "w").reshape(3, 4, 3, 4)
    close(found, torch.einsum("iojo->oij", block))


@pytest.mark.parametrize("by", ["layer", "neuron"])
def test_merge(by: Any) -> None:
    model, _ = ZOO["conv2d-groups"].make()
    x = torch.randn(21, 1, 4, 4, dtype=torch.float64)
    whole = lk.blocks(model, x, by=by)
    parts = lk.blocks(model, [(x[i : i + 3],) for i in range(0, 21, 3)], by=by)
    shards = [lk.blocks(model, part, by=by) for part in x.split((4, 10, 7))]
    merged = shards[0].merge(shards[1]).merge(shards[2])
    assert whole.count == parts.count == merged.count == 21
    for key in whole:
        close(parts[key], whole[key])
        close(merged[key], whole[key])


def test_samples_approach_the_exact_blocks() -> None:
    model, x, y = made(ZOO["conv2d-stride"], "categorical")
    exact = lk.blocks(model, (x, y), "categorical")
    draws = torch.Generator().manual_seed(1)
    found = lk.blocks(model, x, "categorical", "mc", samples=1000, generator=draws)
    for key in exact:
        assert (found[key] - exact[key]).norm() < 0.25 * exact[key].norm()


def test_a_parameter_that_is_not_used_has_zeros() -> None:
    model, x, y = made(ZOO["parameter-not-used"])
    for by in ("layer", "parameter", "kernel", "neuron"):
        found = lk.blocks(model, (x, y), by=by)
        check(model, oracle.ggn(model, x, y), found)


def test_refusals() -> None:
    model, x, y = made(ZOO["conv2d-groups"])
    with pytest.raises(lk.Refused, match=r"take .* KiB, more than limit=10 KiB.*\[54, 54\]"):
        lk.blocks(nn.Linear(8, 6).double(), torch.ones(1, 8).double(), limit=10 << 10)
    with pytest.raises(lk.Refused, match=r"\[6, 8, 8\]"):
        lk.blocks(nn.Linear(8, 6).double(), torch.ones(1, 8).double(), by="neuron", limit=100)
    with pytest.raises(ValueError, match="by='row' must be one of"):
        lk.blocks(model, x, by="row")  # pyright: ignore[reportArgumentType]
    model, x, y = made(ZOO["autoencoder-tied"])
    with pytest.raises(lk.Refused, match="encoder.weight .* neurons are not defined"):
        lk.blocks(model, x, by="neuron")
