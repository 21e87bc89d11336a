"""Threads that share a model, or have one each, and a thread that only runs it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import lapkernels as lk
from tests.curvature.zoo.network import Net


@pytest.fixture(autouse=True)
def threads_that_interrupt_each_other() -> Iterator[None]:
    torch.set_num_threads(1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def deep() -> tuple[nn.Module, Tensor]:
    layers = [layer for _ in range(14) for layer in (nn.Linear(5, 5), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(5, 2)), torch.randn(6, 5)


def recurrent() -> tuple[nn.Module, Tensor]:
    """torch writes the list of its weights on every pass."""
    net = Net(lambda net, x: net.last(net.cell(x)[0][:, -1]))
    net.cell, net.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)
    return net, torch.randn(5, 3, 3)


def computed() -> tuple[nn.Module, Tensor]:
    """The weight is made anew on every pass."""
    return nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2)), torch.randn(
        5, 4
    )


def by_reference() -> tuple[nn.Module, Tensor]:
    """Its first layer is reached by a bound method, not by the tree of modules."""
    net = Net(lambda net, x: net.last(net.run(x)))
    net.first, net.last = nn.Linear(4, 5), nn.Linear(5, 2)
    net.__dict__["run"] = net.first.forward
    return net, torch.randn(5, 4)


MODELS = (deep, recurrent, computed, by_reference)
LABELS = torch.tensor([0, 1, 1, 0, 1, 0])


def ones(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.ones_like(p) for name, p in model.named_parameters()}


def flat(found: Any) -> Tensor:
    tensors = [found] if isinstance(found, Tensor) else found.values()
    return torch.cat([torch.as_tensor(value).flatten().double() for value in tensors])


def posterior(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """All that a posterior does, drawn weights included."""
    la = lk.Laplace(model, "classification", prior=100.0).fit((x, y))
    drawn = la.predict(x, how="weights", samples=3, generator=torch.Generator().manual_seed(0))
    return torch.cat(
        [
            la.predict(x).probabilities,
            drawn.probabilities,
            la.log_evidence()[None, None].expand(1, 2),
        ]
    )


FUNCTIONS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "diag": lambda model, x, y: lk.diag(model, x, "categorical"),
    "by autograd": lambda model, x, y: lk.diag(model, x, "categorical", route="autograd"),
    "empirical": lambda model, x, y: lk.diag(model, (x, y), "categorical", "empirical"),
    "hessian": lambda model, x, y: lk.diag(model, (x, y), "categorical", "hessian"),
    "gradient": lambda model, x, y: (
        lk.gradient_and_diag(model, (x, y), "categorical", "exact").gradient
    ),
    "blocks": lambda model, x, y: lk.blocks(model, x, by="neuron"),
    "full": lambda model, x, y: lk.full(model, x, params=lambda name, p: p.dim() == 1).matrix,
    "product": lambda model, x, y: lk.ggn_product(model, x, ones(model)),
    "jacobian": lambda model, x, y: lk.jacobian(model, x),
    "predictive": lambda model, x, y: lk.predictive_variance(model, x, ones(model)),
    "posterior": posterior,
}


def states(models: list[nn.Module]) -> list[Any]:
    """Identities and bits of parameters, and which attributes modules have."""
    return [
        (
            [(name, id(p), p.detach().numpy().tobytes()) for name, p in model.named_parameters()],
            [
                (name, sorted(vars(module)), type(module._parameters))
                for name, module in model.named_modules()
            ],
        )
        for model in models
    ]


@pytest.mark.parametrize("shared", [True, False], ids=["one-model", "four-models"])
@pytest.mark.parametrize("make", MODELS)
def test_four_threads(make: Callable[[], tuple[nn.Module, Tensor]], shared: bool) -> None:
    model, x = make()
    model, x, y = model.double(), x.double(), LABELS[: len(x)]
    # Its weights have no approximate diagonal.
    names = [name for name in FUNCTIONS if make is not computed or name != "posterior"]
    known = {name: flat(FUNCTIONS[name](model, x, y)) for name in names}
    models = [model] * 4 if shared else [model, *(copy.deepcopy(model) for _ in range(3))]
    before, mkldnn = states(models), torch.backends.mkldnn.enabled
    f, stop = model(x), Event()
    gradients = torch.autograd.grad(f.sum(), list(model.parameters()))

    def work(turn: int) -> None:
        for count in range(len(names)):
            name = names[(count + 3 * turn) % len(names)]
            found = flat(FUNCTIONS[name](models[turn], x, y))
            torch.testing.assert_close(found, known[name], rtol=1e-9, atol=1e-12, msg=name)

    def run() -> None:
        while not stop.is_set():
            again = model(x)
            torch.testing.assert_close(again, f, rtol=0, atol=1e-14)
            found = torch.autograd.grad(again.sum(), list(model.parameters()))
            torch.testing.assert_close(found, gradients)

    with ThreadPoolExecutor(5) as pool:
        plain = pool.submit(run)
        try:
            for job in [pool.submit(work, turn) for turn in range(4)]:
                job.result()
        finally:
            stop.set()
        plain.result()
    assert states(models) == before
    assert torch.backends.mkldnn.enabled == mkldnn
