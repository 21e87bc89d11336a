"""Loss, gradient and diagonal together: batches, choices, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import check, oracle
from tests.curvature.check import Problem
from tests.curvature.zoo.network import Net, parameter


def _plain(one: Problem) -> dict[str, Tensor]:
    """The gradient of a model that is called as it is."""
    parameters = oracle.trainable(one.model)
    loss = one.loss(oracle.call(one.model, one.x, one.output), one.y)
    found = torch.autograd.grad(
        loss, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(parameters, found, strict=True))


def _joint(one: Problem, **options: Any) -> lk.GradientAndDiagonal:
    with check.quiet():
        return lk.gradient_and_diag(
            one.model, one.data, one.likelihood, output=one.output, **options
        )


def _layers() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.BatchNorm2d(3)),
        *(nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 3)),
        *(nn.Sigmoid(), nn.Flatten(), nn.Linear(4, 3)),
    ).eval()


def test_batches_add_up() -> None:
    x = torch.randn(5, 1, 6, 6, dtype=torch.float64)
    one = check.of(_layers().double(), x, "categorical")
    halves = [(x[:2], one.y[:2]), (x[2:], one.y[2:])]
    whole = _joint(one)
    parts = lk.gradient_and_diag(one.model, halves, one.likelihood)
    torch.testing.assert_close(parts.loss, whole.loss)
    check.assert_close(parts.gradient, whole.gradient)
    check.assert_close(parts.diagonal, whole.diagonal)
    assert parts.diagonal.summary == whole.diagonal.summary
    assert whole.diagonal.summary == lk.diag(one.model, x, one.likelihood, "approx").summary


def test_chosen_parameters_alone() -> None:
    one = check.of(_layers().double(), torch.randn(2, 1, 6, 6, dtype=torch.float64), "categorical")
    found = _joint(one, params="4")
    assert list(found.gradient) == list(found.diagonal) == ["4.weight", "4.bias"]
    gradient = _plain(one)
    check.assert_close(found.gradient, {name: gradient[name] for name in found.gradient})


def test_gradients_are_tensors_of_their_own() -> None:
    """Autograd has one and the same gradient for two parameters, and none for the third."""
    owned = {"a": parameter(3), "b": parameter(3), "unused": parameter(2)}
    model = Net(lambda net, x: x * (net.a + net.b), **owned).double()
    one = check.of(model, torch.randn(4, 3, dtype=torch.float64))
    found = _joint(one, method="exact")
    gradient = _plain(one)
    check.assert_close(found.gradient, gradient)
    places = {value.data_ptr() for value in found.gradient.values()}
    assert len(places) == len(found.gradient)


@pytest.mark.parametrize("function", [lambda x: x + x, lambda x: x * x * x], ids=["sum", "cube"])
def test_operands_that_stand_twice(function: Callable[[Tensor], Tensor]) -> None:
    layers = {"first": nn.Linear(3, 4), "last": nn.Linear(4, 2)}
    model = Net(lambda net, x: net.last(function(net.first(x))), **layers)
    one = check.of(model.double(), torch.randn(5, 3, dtype=torch.float64))
    gradient = _plain(one)
    check.assert_close(_joint(one, method="approx").gradient, gradient)


def test_grad_is_left_alone() -> None:
    one = check.of(_layers(), torch.randn(2, 1, 6, 6), "categorical")
    kept = torch.randn_like(next(one.model.parameters()))
    next(one.model.parameters()).grad = kept
    before = kept.clone()
    found = _joint(one)
    grads = [p.grad for p in one.model.parameters()]
    assert grads[0] is kept and kept.equal(before) and not any(g is not None for g in grads[1:])
    assert not found.loss.requires_grad
    assert not any(value.requires_grad for value in found.gradient.values())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "hessian"}, "hessian_diag"),
        ({"method": "exactly"}, "must be one of"),
        ({"threshold": -1}, "threshold"),
    ],
)
def test_bad_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        _joint(check.of(_layers(), torch.randn(2, 1, 6, 6), "categorical"), **options)


def test_no_labels() -> None:
    with pytest.raises(ValueError, match="labels"):
        lk.gradient_and_diag(_layers(), torch.randn(2, 1, 6, 6), "categorical")
