"""Models of torch's own layers are repeated without running them, and noticed when they change."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import lapkernels as lk
from lapkernels.curvature.recording import replay
from lapkernels.curvature.recording.replay import _METHODS, LAYERS


def read_by(layer: type[nn.Module], name: str = "forward") -> Iterator[str]:
    """Attributes that a method reads, and the methods that it calls."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(layer, name))))
    for one in ast.walk(tree):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            if one.value.id == "self":
                yield one.attr
                if one.attr != name and inspect.isfunction(getattr(layer, one.attr, None)):
                    yield from read_by(layer, one.attr)


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_read_nothing_but_their_settings(layer: type[nn.Module]) -> None:
    tensors = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    settings = {"training", *getattr(layer, "__constants__", ())}
    # Padding modes other than zeros are no calls that can be repeated.
    rest = set(read_by(layer)) - tensors - settings - set(_METHODS)
    assert rest <= {"_reversed_padding_repeated_twice"}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LeakyReLU(0.1), nn.BatchNorm2d(2), nn.AvgPool2d(2))
    rest = (
        nn.Flatten(),
        nn.Linear(8, 4),
        nn.Tanh(),
        nn.Linear(4, 4),
        nn.Dropout(),
        nn.Linear(4, 3),
    )
    return nn.Sequential(first, *rest).eval()


def images() -> Tensor:
    return torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with every pass that runs its model."""
    found: list[Any] = []
    for name in ("run", "record"):
        real = getattr(replay, name)

        def counted(*args: Any, real: Any = real, **kwargs: Any) -> Any:
            found.append(args)
            return real(*args, **kwargs)

        monkeypatch.setattr(replay, name, counted)
    return found


def check(model: nn.Module, **options: Any) -> None:
    """The diagonal is that of a model which was never seen before."""
    found = lk.diag(model, images(), "categorical", **options)
    known = lk.diag(copy.deepcopy(model), images(), "categorical", **options)
    assert all(torch.equal(found[name], known[name]) for name in known)


def test_a_model_runs_once(run: list[Any]) -> None:
    model = network()
    lk.diag(model, images(), "categorical")
    assert len(run) == 1
    for method in ("exact", "approx", "mc"):
        lk.diag(model, images(), "categorical", method)
    lk.kron(model, images(), "categorical")
    found = lk.gradient_and_diag(model, (images(), torch.arange(5) % 3), "categorical")
    assert len(run) == 1
    loss = nn.functional.cross_entropy(model(images()), torch.arange(5) % 3, reduction="sum")
    known = torch.autograd.grad(loss, list(model.parameters()))
    for mine, one in zip(found.gradient.values(), known, strict=True):
        torch.testing.assert_close(mine, one)


CHAINS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)),
    "convolution": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 4)),
    "neither": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm([4, 4]), nn.Conv2d(2, 3, 4)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_gradients_of_a_model_that_was_seen_by_others(name: str) -> None:
    model = CHAINS[name]()
    data = images(), torch.randn_like(model(images()))
    found = []
    for one in (copy.deepcopy(model), model):
        for _ in range(2):
            if one is model:
                lk.diag(one, data)
        found.append(lk.gradient_and_diag(one, data))
    loss = 0.5 * (model(data[0]) - data[1]).square().sum()
    exact = torch.autograd.grad(loss, list(model.parameters()))
    for key, known in zip(found[0].gradient, exact, strict=True):
        torch.testing.assert_close(found[0].gradient[key], known)
        torch.testing.assert_close(found[1].gradient[key], known)
        assert torch.equal(found[0].diagonal[key], found[1].diagonal[key])


def test_outputs_that_are_chosen_run_the_model(run: list[Any]) -> None:
    model = network()
    for scale in (1.0, 2.0):
        check(model, output=lambda out, scale=scale: out * scale)
    assert len(run) >= 4


def leaky(model: nn.Sequential) -> Any:
    return model[0][1]  # pyright: ignore[reportIndexIssue]


def patched(model: nn.Sequential) -> None:
    leaky(model).forward = torch.tanh


def redone(model: nn.Sequential) -> None:
    first: Any = model[0]
    first[0]._conv_forward = lambda x, w, b: 2 * nn.functional.conv2d(x, w, b)


def swapped(model: nn.Sequential) -> None:
    model[3], model[5] = model[5], model[3]


def tied(model: nn.Sequential) -> None:
    model[4].weight = nn.Parameter(torch.randn(4, 4))


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "slope": lambda model: setattr(leaky(model), "negative_slope", 0.5),
    "epsilon": lambda model: setattr(model[0][2], "eps", 0.5),  # pyright: ignore
    "forward": patched,
    "method": redone,
    "another layer": lambda model: model.insert(4, nn.Tanh()),
    "other order": swapped,
    "fewer layers": lambda model: model.pop(3),
    "hook": lambda model: leaky(model).register_forward_hook(lambda *args: 3 * args[-1]),
    "hook before": lambda model: model.register_forward_pre_hook(lambda _, x: (3 * x[0],)),
    "values": lambda model: nn.init.ones_(model[2].weight),  # pyright: ignore
    "another weight": tied,
    "statistics": lambda model: model[0][2].running_mean.add_(1),  # pyright: ignore
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name: str) -> None:
    model = network()
    before = [lk.diag(model, images(), "categorical") for _ in range(2)][1]
    CHANGES[name](model)
    check(model)
    after = lk.diag(model, images(), "categorical")
    same = list(before) == list(after)
    assert not same or any(not torch.equal(before[k], after[k]) for k in before)


def test_hooks_of_all_modules_are_noticed() -> None:
    model = network()
    before = [lk.diag(model, images(), "categorical") for _ in range(2)][1]
    handle = register_module_forward_hook(
        lambda module, args, out: out * 3 if isinstance(module, nn.Tanh) else out
    )
    try:
        check(model)
        after = lk.diag(model, images(), "categorical")
    finally:
        handle.remove()
    assert not torch.equal(before["0.0.weight"], after["0.0.weight"])


def doubled(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return 2 * nn.functional.conv2d(x, weight, bias)


@pytest.mark.parametrize(
    ("layer", "method", "other"),
    [
        (nn.Tanh, "forward", lambda _, x: torch.sigmoid(x)),
        (nn.Conv2d, "_conv_forward", doubled),
        (nn.Sequential, "__iter__", lambda model: iter([*model._modules.values(), nn.Tanh()])),
    ],
)
def test_changed_classes_are_noticed(
    layer: type[nn.Module], method: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    before = [lk.diag(model, images(), "categorical") for _ in range(2)][1]
    monkeypatch.setattr(layer, method, other)
    check(model)
    after = lk.diag(model, images(), "categorical")
    assert not torch.equal(before["0.0.weight"], after["0.0.weight"])


def test_ties_are_noticed() -> None:
    def model(other: int) -> nn.Sequential:
        torch.manual_seed(0)
        made = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(4)))
        made[3].weight = made[other].weight
        return made

    one, x = model(0), torch.randn(4, 3)
    for _ in range(2):
        lk.diag(one, x)
    one[3].weight = one[1].weight
    found, known = lk.diag(one, x), lk.diag(model(1), x)
    assert all(torch.equal(found[name], known[name]) for name in known)


def test_settings_that_can_change_unseen_are_not_trusted(run: list[Any]) -> None:
    pool = nn.AvgPool2d([2, 2])  # pyright: ignore[reportArgumentType]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), pool, nn.Flatten(), nn.Linear(8, 3))
    for _ in range(2):
        lk.diag(model, images(), "categorical")
    assert len(run) == 2
