"""Chains of layers: where they begin and end, and the same numbers as layer by layer."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.backward.chains import chains
from lapkernels.curvature.passes.passes import passes
from lapkernels.kernels import NATIVE
from lapkernels.likelihoods import resolve
from lapkernels.ops import serving
from tests.curvature.zoo.network import Net

joint_module = sys.modules["lapkernels.curvature.quantities.gradient_and_diag"]
pytestmark = pytest.mark.skipif(NATIVE.path is None, reason="chains are for compiled kernels")


def lengths(model: nn.Module, x: Tensor, **options: Any) -> list[int]:
    """The number of layers in each chain, from the output on."""
    (one,) = passes(model, x, **options)[1]
    return [len(chain.links) for chain in chains(one.graph).values()]


def convs(*channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(channels, channels[1:], strict=False):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh()]
    return layers[:-1]


def test_where_chains_end() -> None:
    image, rows = torch.randn(2, 3, 8, 8), torch.randn(4, 5)
    assert lengths(nn.Sequential(*convs(3, 3, 2, 3)), image) == [3]
    linear = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6), nn.Linear(6, 2))
    assert lengths(linear, rows) == [3]
    assert lengths(linear, torch.randn(serving.CHAINED_ROWS + 1, 5)) == []
    # What only moves entries, or is read twice, or is frozen, ends a chain.
    pooled = nn.Sequential(*convs(3, 2, 2), nn.MaxPool2d(2), *convs(2, 3))
    assert lengths(pooled, image) == [1, 2]
    assert lengths(linear, rows, params="0") == [1]
    assert lengths(linear, rows, params=["0", "3"]) == [1, 1]

    skip = Net(
        lambda net, x: (z := torch.tanh(net.a(x))) + net.b(z), a=nn.Linear(5, 5), b=nn.Linear(5, 5)
    )
    assert lengths(skip, rows) == [1, 1]
    wide = torch.randn(2, 3, 2, serving.WIDTH)
    assert lengths(nn.Sequential(*convs(3, 40, 40)), wide) == [2]
    # Torch's library serves many channels of short rows and kernels of one entry, tied weights have
    # several uses.
    assert lengths(nn.Sequential(*convs(3, 40, 40)), image) == [1]
    pointwise = nn.Conv2d(4, 4, 1)
    assert lengths(nn.Sequential(*convs(3, 4), nn.ReLU(), pointwise), image) == [1]
    tied = nn.Linear(5, 5)
    assert lengths(nn.Sequential(tied, nn.Tanh(), tied), rows) == []


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_gradients_go_with_the_diagonal(likelihood: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(
        *convs(3, 4, 2),
        *(nn.Sigmoid(), nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.AvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)),
    ).double()
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    y = torch.arange(5) % 3 if likelihood == "categorical" else torch.randn(5, 3).double()
    calls: list[Any] = []
    real = joint_module.pull_diagonal

    def counted(*args: Any) -> None:
        calls.append(args)
        real(*args)

    monkeypatch.setattr(joint_module, "pull_diagonal", counted)
    found = lk.gradient_and_diag(model, (x, y), likelihood)
    assert len(calls) == 1
    noise = resolve(likelihood)
    leaves = dict(model.named_parameters())
    known = torch.autograd.grad(noise.nll(model(x), y), list(leaves.values()))
    diagonal = lk.diag(model, x, likelihood, "approx")
    for name, gradient in zip(leaves, known, strict=True):
        torch.testing.assert_close(found.gradient[name], gradient)
        torch.testing.assert_close(found.diagonal[name], diagonal[name])


def test_gradients_of_other_layers_are_autograds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    monkeypatch.setattr(joint_module, "pull_diagonal", None)
    x, y = torch.randn(3, 5), torch.randn(3, 2)
    found = lk.gradient_and_diag(model, (x, y))
    assert set(found.gradient) == set(dict(model.named_parameters()))


def test_parameters_in_other_memory_formats() -> None:
    model = nn.Sequential(*convs(3, 4, 2))
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    x, y = torch.randn(2, 3, 6, 6), torch.randn(2, 2, 6, 6)
    found = lk.gradient_and_diag(model, (x, y))
    for name, parameter in model.named_parameters():
        assert found.gradient[name].stride() == parameter.stride()
        assert found.diagonal[name].stride() == parameter.stride()
