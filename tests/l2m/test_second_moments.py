"""Second moments against averages kept by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lapkernels.l2m.second_moments import second_moments

STEPS = 7


def averaged(squares: list[Tensor], decay: float) -> Tensor:
    """The bias-corrected running average."""
    weights = [(1 - decay) * decay ** (STEPS - 1 - t) for t in range(STEPS)]
    stacked = torch.stack([w * s for w, s in zip(weights, squares, strict=True)])
    return stacked.sum(0) / sum(weights)


def greatest(squares: list[Tensor], decay: float) -> Tensor:
    """AMSGrad: the greatest uncorrected average so far, then corrected."""
    average, top = torch.zeros_like(squares[0]), torch.zeros_like(squares[0])
    for square in squares:
        average = decay * average + (1 - decay) * square
        top = torch.maximum(top, average)
    return top / (1 - decay**STEPS)


CASES: dict[
    str, tuple[Callable[..., Optimizer], dict[str, Any], Callable[[list[Tensor]], Tensor]]
] = {
    "adam": (torch.optim.Adam, {"betas": (0.9, 0.8)}, lambda s: averaged(s, 0.8)),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.3}, lambda s: averaged(s, 0.999)),
    "amsgrad": (
        torch.optim.Adam,
        {"amsgrad": True, "betas": (0.9, 0.5)},
        lambda s: greatest(s, 0.5),
    ),
    "nadam": (torch.optim.NAdam, {}, lambda s: averaged(s, 0.999)),
    "radam": (torch.optim.RAdam, {}, lambda s: averaged(s, 0.999)),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9}, lambda s: averaged(s, 0.9)),
    "rmsprop-centered": (
        torch.optim.RMSprop,
        {"alpha": 0.9, "centered": True},
        lambda s: averaged(s, 0.9),
    ),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.7}, lambda s: averaged(s, 0.7)),
    "adagrad": (
        torch.optim.Adagrad,
        {"initial_accumulator_value": 0.5},
        lambda s: torch.stack(s).mean(0),
    ),
}


def trained(kind: Callable[..., Optimizer], options: dict[str, Any]) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    squares: dict[str, list[Tensor]] = {name: [] for name, _ in model.named_parameters()}
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(5, 3).double()).square().mean().backward()
        for name, p in model.named_parameters():
            assert p.grad is not None
            squares[name].append(p.grad.square())
        optimizer.step()
    return optimizer, model, squares


# Ways to run a step, which keep their state in other forms, and who knows them on this device.
FUSED = ("adam", "adamw", "amsgrad", "adagrad")
WAYS = [
    *((name, way) for name in CASES for way in ("plain", "foreach")),
    *((name, "fused") for name in FUSED),
    *((name, "capturable") for name in CASES if name != "adagrad"),
]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_second_moments(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, options, expected = CASES[name]
    if way == "plain":
        options = {**options, "foreach": False}
    else:
        options = {**options, way: True}
    if way == "capturable":
        # Optimisers step this way on an accelerator only, unless they are being compiled.
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    optimizer, model, squares = trained(kind, options)
    if way == "capturable":
        assert all(torch.is_tensor(state["step"]) for state in optimizer.state.values())
    found = second_moments(optimizer, dict(model.named_parameters()))
    assert list(found) == list(squares)
    for parameter, value in found.items():
        torch.testing.assert_close(value, expected(squares[parameter]), rtol=1e-10, atol=0)


def test_groups_keep_their_own_settings() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
    groups = [
        {"params": model[0].parameters(), "betas": (0.9, 0.5)},
        {"params": model[1].parameters()},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    model(torch.ones(1, 2).double()).sum().backward()
    optimizer.step()
    # After one step every corrected average is that step's square.
    for name, value in second_moments(optimizer, dict(model.named_parameters())).items():
        gradient = model.get_parameter(name).grad
        assert gradient is not None
        torch.testing.assert_close(value, gradient.square(), rtol=1e-10, atol=0)


def test_what_is_missing_is_named() -> None:
    optimizer, model, _ = trained(torch.optim.Adam, {})
    parameters = dict(model.named_parameters())
    with pytest.raises(ValueError, match=r"not in the optimizer: other; .*params"):
        second_moments(optimizer, {**parameters, "other": nn.Parameter(torch.ones(1))})
    spare = nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [spare]})
    with pytest.raises(ValueError, match="has not stepped spare"):
        second_moments(optimizer, {**parameters, "spare": spare})
    optimizer.state[model[0].weight]["exp_avg_sq"].fill_(torch.nan)
    with pytest.raises(ValueError, match=r"0\.weight is not finite"):
        second_moments(optimizer, parameters)


def test_other_optimizers_are_refused() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(TypeError, match="SGD keeps no second moment"):
        second_moments(torch.optim.SGD(model.parameters(), lr=0.1), dict(model.named_parameters()))
