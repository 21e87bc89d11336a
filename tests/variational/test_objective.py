"""The mode under a prior."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lapkernels.curvature import Refused
from lapkernels.variational import (
    MaximumAPosteriori,
    MeanField,
    VariationalInference,
    VariationalLaplace,
)
from lapkernels.variational.objective import Objective
from tests.curvature.zoo.network import Net
from tests.variational.networks import dense, prepared


def test_loss_is_the_log_joint() -> None:
    model = prepared(dense(3, 4, 2))
    q = MaximumAPosteriori(model, "categorical", 10, prior_std={"0": 0.5, "2": 3.0}, beta=0.2)
    x, y = torch.randn(5, 3).double(), torch.randint(2, (5,))
    stds = {"0.weight": 0.5, "0.bias": 0.5, "2.weight": 3.0, "2.bias": 3.0}
    penalty = sum((p / stds[n]).square().sum() for n, p in model.named_parameters())
    expected = nn.functional.cross_entropy(model(x), y) + 0.2 * penalty / 20
    torch.testing.assert_close(q.loss(x, y), expected, rtol=1e-12, atol=0)


def test_inputs_of_several_tensors_and_chosen_outputs() -> None:
    layer = nn.Linear(2, 2)
    model = Net(lambda net, a, b: {"sum": net.layer(a + b), "other": a}, layer=layer)
    a, b, y = torch.randn(3, 2), torch.randn(3, 2), torch.randn(3, 2)
    q = MaximumAPosteriori(model, "gaussian", 3, output="sum", beta=0.0)
    expected = 0.5 * (layer(a + b) - y).square().sum() / 3
    torch.testing.assert_close(q.loss((a, b), y), expected)
    torch.testing.assert_close(q.loss({"a": a, "b": b}, y), expected)


def objective(kind: str, model: nn.Module, likelihood: str = "categorical") -> Objective:
    generator = torch.Generator().manual_seed(0)
    if kind == "map":
        return MaximumAPosteriori(model, likelihood, 10)
    if kind == "inference":
        return VariationalInference(model, likelihood, 10, generator=generator)
    options: dict[str, Any] = {"route": kind} if kind == "difference" else {"curvature": kind}
    return VariationalLaplace(model, likelihood, 10, generator=generator, **options)


KINDS = ("map", "inference", "batch", "samples", "hessian", "difference")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda y: y + 2, ValueError, r"labels 0 to 1 or ignore_index"),
        (lambda y: y > 0, TypeError, "y has dtype torch.bool"),
        (lambda y: y.unsqueeze(1), ValueError, "y has shape"),
        (lambda y: y.tolist(), TypeError, "y is a list"),
        (lambda y: None, TypeError, "labels are needed"),
    ],
)
def test_bad_labels(kind: str, change: Any, error: type[Exception], message: str) -> None:
    q = objective(kind, prepared(dense(3, 4, 2)))
    x, y = torch.randn(5, 3).double(), torch.randint(2, (5,))
    state = q.generator.get_state() if isinstance(q, MeanField) and q.generator else torch.ones(1)
    with pytest.raises(error, match=message):
        q.loss(x, change(y))
    if isinstance(q, MeanField) and q.generator:
        assert torch.equal(q.generator.get_state(), state)
    q.loss(x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_writes_to_its_inputs(kind: str) -> None:
    """Gradients go on into what the inputs were made of."""
    found: list[list[torch.Tensor]] = []
    for in_place in (False, True):
        inner = prepared(dense(3, 4, 2))

        def shift(module: nn.Module, args: Any, in_place: bool = in_place) -> Any:
            return (args[0].mul_(2) if in_place else args[0] * 2,)

        inner.register_forward_pre_hook(shift)
        q = objective(kind, inner)
        torch.manual_seed(0)
        x, y = torch.randn(5, 3).double().requires_grad_(), torch.randint(2, (5,))
        before = x.detach().clone()
        loss = q.loss(x, y)
        values = [loss.detach(), *torch.autograd.grad(loss, list(q.parameters()))]
        if kind != "difference":
            values += torch.autograd.grad(q.loss(x, y), x)
        if isinstance(q, MeanField):
            values.append(q.sampled_outputs(x, 3))
        assert torch.equal(x, before)
        found.append(values)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_drawn_networks_in_training_mode_are_refused() -> None:
    model = prepared(nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2)))
    q = objective("inference", model)
    assert isinstance(q, MeanField) and q.generator is not None
    q.eval().sampled_outputs(torch.randn(2, 3).double())  # pyright: ignore
    with pytest.raises(Refused, match=r"1 \(Dropout\) .*call model.eval\(\) first"):
        q.train().sampled_outputs(torch.randn(2, 3).double())  # pyright: ignore


def test_a_state_that_lacks_something_changes_nothing() -> None:
    q = objective("map", prepared(dense(3, 4, 2)))
    before = q.get_extra_state()
    with pytest.raises(KeyError):
        q.set_extra_state({"prior_std": dict.fromkeys(q.names, 3.0), "beta": 7.0})
    assert q.get_extra_state() == before
