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
from tests.curvature.recording.test_zoo import templates, tensors_behind


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


QUANTITIES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "mc": lambda model, x: lk.diag(
        model, x, "categorical", "mc", generator=torch.Generator().manual_seed(1)
    ),
    "kron": lambda model, x: {
        f"{name}{k}": part
        for name, pair in lk.kron(model, x, "categorical", "exact").items()
        for k, part in enumerate((pair.input, pair.output))
        if part is not None
    },
    "blocks": lambda model, x: lk.full(model, x, "categorical").matrix,
    "gradient": lambda model, x: (
        lk.gradient_and_diag(
            model, (x, torch.zeros(len(x), dtype=torch.long)), "categorical"
        ).gradient
    ),
    "predictive": lambda model, x: lk.predictive_variance(
        model, x, {name: torch.ones_like(p) for name, p in model.named_parameters()}
    ),
}


@pytest.mark.parametrize("name", QUANTITIES)
def test_every_quantity(name: str, recorded: list[Any]) -> None:
    model, run = small(), QUANTITIES[name]
    other = copy.deepcopy(model)
    run(model, images())
    count = len(recorded)
    found = run(model, images(seed=1))
    assert len(recorded) == count
    known = run(other, images(seed=1))
    pairs = [(found, known)] if isinstance(found, Tensor) else [(found[k], known[k]) for k in known]
    assert pairs and all(torch.equal(*pair) for pair in pairs)


def test_passes_that_live_together(recorded: list[Any]) -> None:
    model = small()
    several = list(passes(model, [images(seed=k) for k in range(4)])[1])
    assert len(recorded) == 4
    for k, one in enumerate(several):
        assert torch.equal(one.prediction, model(images(seed=k)))
    first = several[0].graph.sample_nodes[0].rule.uses[1]
    assert torch.equal(first.x(), images(seed=0))  # pyright: ignore[reportAttributeAccessIssue]


def test_another_way_is_recorded(recorded: list[Any]) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            z = self.layer(x)
            if float(x.detach().sum()) > 0:
                z = torch.tanh(z)
            return z * 2 if x.shape[0] > 2 else z

    torch.manual_seed(0)
    model = Branches()
    x = torch.rand(2, 3)
    for sign in (1, -1, 1, -1):
        found = lk.diag(model, sign * x)
        known = lk.diag(copy.deepcopy(model), sign * x)
        assert all(torch.equal(found[name], known[name]) for name in known)


def scaled(z: Tensor, factor: float) -> Tensor:
    return F.leaky_relu(z, factor)


def test_other_numbers_are_recorded(recorded: list[Any]) -> None:
    class Slope(nn.Linear):
        slope = 0.1

        def forward(self, input: Tensor) -> Tensor:
            return scaled(super().forward(input), self.slope)

    torch.manual_seed(0)
    model, x = Slope(3, 3), torch.randn(4, 3)
    first = lk.diag(model, x)
    model.slope = 0.5
    second = lk.diag(model, x)
    assert len(recorded) == 2
    assert not torch.equal(first["weight"], second["weight"])


def test_hooks_on_gradients_are_noticed() -> None:
    class Hooked(nn.Linear):
        hooked = False

        def forward(self, input: Tensor) -> Tensor:
            z = super().forward(input)
            if self.hooked:
                z.register_hook(lambda grad: 3 * grad)
            return torch.tanh(z)

    torch.manual_seed(0)
    model, x = Hooked(3, 3), torch.randn(4, 3)
    plain = lk.diag(model, x)
    model.hooked = True
    found = lk.diag(model, x)
    torch.testing.assert_close(found["weight"], 9 * plain["weight"])


def test_tensors_that_nobody_named_are_noticed(recorded: list[Any]) -> None:
    class Shifted(nn.Linear):
        shift: tuple[Tensor, ...] = ()

        def forward(self, input: Tensor) -> Tensor:
            return F.linear(input, self.weight, *(self.shift or (None,)))

    torch.manual_seed(0)
    model, x = Shifted(3, 3, bias=False), torch.randn(4, 3)
    plain = lk.predictive_variance(model, x, {"weight": torch.ones(3, 3)})
    model.shift = (torch.ones(3),)
    assert len(recorded) == 1
    again = lk.predictive_variance(model, x, {"weight": torch.ones(3, 3)})
    assert len(recorded) == 2
    torch.testing.assert_close(again, plain)


def test_models_that_ask_for_gradients_go_the_same_way() -> None:
    class Asks(nn.Linear):
        asks = False

        def forward(self, input: Tensor) -> Tensor:
            z = super().forward(input)
            return torch.tanh(z) if self.asks and z.requires_grad else torch.sigmoid(z)

    torch.manual_seed(0)
    model, x = Asks(3, 3), torch.randn(4, 3)
    lk.diag(model, x)
    model.asks = True
    found = lk.diag(model, x)
    torch.testing.assert_close(found["weight"], lk.diag(copy.deepcopy(model), x)["weight"])


def test_writes_behind_the_back_are_noticed() -> None:
    class Writes(nn.Linear):
        writes = False

        def forward(self, input: Tensor) -> Tensor:
            z = super().forward(input)
            if self.writes:
                with torch.no_grad():
                    torch._foreach_mul_([z], 0.5)
            return torch.tanh(z)

    torch.manual_seed(0)
    model, x = Writes(3, 3), torch.randn(4, 3)
    lk.diag(model, x)
    model.writes = True
    known, _ = oracle.jacobians(model, x)
    for name, value in lk.diag(model, x).items():
        torch.testing.assert_close(value.double(), known[name].square().sum((0, 1)))


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
