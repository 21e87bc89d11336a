"""How often the host reads numbers: once a batch and once or twice a call, at any depth.

On a GPU each read waits for the device. The suite on CUDA tensors counts the same there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.backward.parameter_uses import strided_entries
from tests.launches import Launches

Data = list[Tensor]
METHODS: dict[str, Callable[[nn.Module, Data], Any]] = {
    **{
        method: lambda net, data, method=method: lk.diag(net, data, "categorical", method=method)
        for method in ("exact", "mc", "approx")
    },
    "kron": lambda net, data: lk.kron(net, data, "categorical", method="mc"),
    "blocks": lambda net, data: lk.blocks(net, data, "categorical", by="neuron"),
    "jacobian": lambda net, data: lk.jacobian(net, data),
}


def network(depth: int) -> nn.Sequential:
    """Convolutions, plain and transposed, whose weights lie in memory in two orders."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(3, 2, 1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 4))


def reads(method: str, depth: int, batches: int) -> tuple[int, int]:
    net, data = network(depth), [torch.randn(3, 2, 4, 4) for _ in range(batches)]
    METHODS[method](net, data)  # recorded
    with Launches("cpu") as found:
        METHODS[method](net, data)
    return found.waits.total(), found.launched.total()


@pytest.mark.parametrize("method", METHODS)
def test_numbers_are_read_once_a_batch(method: str) -> None:
    few, launched = reads(method, 1, 2)
    deep, more = reads(method, 3, 2)
    assert deep == few and more > launched > 0
    assert reads(method, 1, 5)[0] - few == 3
    # Kronecker factors are checked in two parts, which a device's checks are gathered from.
    assert few - 2 <= (2 if method == "kron" else 1)


def test_parameter_variances_are_read_once_each() -> None:
    """On a device all are read at once."""
    net = network(1)
    variance = {name: torch.ones_like(p) for name, p in net.named_parameters()}
    x = torch.randn(3, 2, 4, 4)
    lk.predictive_variance(net, x, variance)
    with Launches("cpu") as found:
        lk.predictive_variance(net, x, variance)
    assert found.waits.total() == len(variance) + 2


def test_entries_of_a_layout_are_one_tensor() -> None:
    """So two layouts are told apart without reading them."""
    x = torch.zeros(2, 3, 4)
    one = strided_entries(x, (3, 2, 4), (4, 12, 1))
    assert torch.equal(one, torch.arange(24).reshape(2, 3, 4).transpose(0, 1).reshape(3, 2, 4))
    assert strided_entries(x, (3, 2, 4), (4, 12, 1)) is one
    assert strided_entries(x, (3, 2, 4), (8, 4, 1)) is not one
