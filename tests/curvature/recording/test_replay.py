"""Passes that repeat an earlier one: the numbers of recorded ones, and no tensor left behind."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.passes.passes import passes
from lapkernels.curvature.recording import replay
from tests.curvature import oracle
from tests.curvature.functions import FUNCTIONS, tensors
from tests.curvature.recording.test_zoo import templates, tensors_behind
from tests.curvature.zoo import ZOO
from tests.curvature.zoo.network import Net


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with every pass that is recorded, and not replayed."""
    found: list[Any] = []
    real = replay.record

    def counted(*args: Any, **kwargs: Any) -> Any:
        found.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(replay, "record", counted)
    return found


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(8, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3)),
    ).eval()


# These record nothing.
AUTOGRAD = ("hessian_diag", "ggn_product", "low_rank")


def images(count: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_batches_after_the_second_are_replayed(recorded: list[Any]) -> None:
    model = small()
    together = lk.diag(model, torch.cat([images(seed=k) for k in range(5)]), "categorical")
    assert len(recorded) == 1
    alone = lk.diag(model, [images(seed=k) for k in range(5)], "categorical")
    assert len(recorded) == 3
    for name, value in together.items():
        torch.testing.assert_close(alone[name], value)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in AUTOGRAD])
def test_every_quantity(name: str, recorded: list[Any]) -> None:
    model, y = small(), torch.zeros(5, dtype=torch.long)
    other = copy.deepcopy(model)
    FUNCTIONS[name](model, images(), y, "categorical")
    count = len(recorded)
    found, known = (
        [*tensors(FUNCTIONS[name](one, images(seed=1), y, "categorical"))] for one in (model, other)
    )
    assert count > 0 and len(recorded) == 2 * count
    assert found and all(map(torch.equal, found, known))


def test_passes_that_live_together(recorded: list[Any]) -> None:
    model = small()
    several = list(passes(model, [images(seed=k) for k in range(4)])[1])
    assert len(recorded) == 4
    for k, one in enumerate(several):
        assert torch.equal(one.prediction, model(images(seed=k)))
    first = several[0].graph.sample_nodes[0].rule.uses[1]
    assert torch.equal(first.x(), images(seed=0))  # pyright: ignore[reportAttributeAccessIssue]


def _hooked(net: Any, x: Tensor) -> Tensor:
    z = net.layer(x)
    if net.on:
        z.register_hook(lambda grad: 3 * grad)
    return torch.tanh(z)


def _written(net: Any, x: Tensor) -> Tensor:
    z = net.layer(x)
    if net.on:
        with torch.no_grad():
            torch._foreach_mul_([z], 0.5)
    return torch.tanh(z)


def scaled(z: Tensor, factor: float) -> Tensor:
    return F.leaky_relu(z, factor)


# What a model does otherwise once it is switched on.
SWITCHED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "number": lambda net, x: scaled(net.layer(x), 0.5 if net.on else 0.1),
    "branch": lambda net, x: torch.tanh(net.layer(x)) if net.on else net.layer(x),
    "branch by values": lambda net, x: (
        torch.tanh(net.layer(x)) if float(x.detach().sum()) > 100 * net.on else 2 * net.layer(x)
    ),
    "tensor that nobody named": lambda net, x: F.linear(
        x, net.layer.weight, *((torch.ones(3, dtype=x.dtype),) if net.on else (None,))
    ),
    "hook on a gradient": _hooked,
    "write behind the back": _written,
}


@pytest.mark.parametrize("name", SWITCHED)
def test_other_calls_are_noticed(name: str) -> None:
    model = Net(SWITCHED[name], layer=nn.Linear(3, 3)).double()
    x = torch.rand(4, 3, dtype=torch.float64)
    for on in (False, True, False, True):
        model.__dict__["on"] = on
        known, _ = oracle.jacobians(model, x)
        found = lk.diag(model, x, params="layer.weight")
        wanted = known["layer.weight"].square().sum((0, 1))
        torch.testing.assert_close(found["layer.weight"], wanted)


def test_models_that_ask_for_gradients_go_the_same_way() -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        z = net.layer(x)
        return torch.tanh(z) if net.asks and z.requires_grad else torch.sigmoid(z)

    model, x = Net(run, layer=nn.Linear(3, 3)), torch.randn(4, 3)
    for model.__dict__["asks"] in (False, True):
        found, known = (lk.diag(one, x) for one in (model, copy.deepcopy(model)))
        torch.testing.assert_close(dict(found), dict(known))


def test_changed_models(recorded: list[Any]) -> None:
    model = small()
    lk.diag(model, images(), "categorical")
    with torch.no_grad():
        model[0].weight.mul_(2)  # pyright: ignore[reportArgumentType, reportCallIssue]
    model[7] = nn.Linear(4, 3)
    found = lk.diag(model, images(), "categorical")
    assert len(recorded) == 1
    known = lk.diag(copy.deepcopy(model), images(), "categorical")
    assert all(torch.equal(found[name], known[name]) for name in known)
    lk.diag(model, images(), "categorical", params="4")
    assert len(recorded) == 3


def test_nothing_outlives_a_pass() -> None:
    model = small()
    (one,) = passes(model, images())[1]
    activation = weakref.ref(one.graph.sample_nodes[0].rule.uses[1].x())  # pyright: ignore
    assert not templates(model)
    del one
    assert activation() is None
    (template,) = templates(model)
    assert not tensors_behind(template)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("id", ["vision-transformer", "lstm-two-layers"])
def test_layers_of_several_ops_are_replayed(id: str, recorded: list[Any]) -> None:
    network = ZOO[id]
    model, x = network.make(torch.float64)
    assert isinstance(x, Tensor)
    for batch in (x, 2 * x, x - 1):
        true = oracle.jacobians(model, batch, network.output)[0]
        found = lk.diag(model, batch, "gaussian")
        for name, rows in true.items():
            torch.testing.assert_close(found[name], rows.square().sum((0, 1)).view_as(found[name]))
    assert len(recorded) == 1
