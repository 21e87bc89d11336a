"""Loss and gradient against autograd of a plain call in float64, the diagonal against ``diag``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import check, oracle
from tests.curvature.check import Problem, problem
from tests.curvature.zoo import ZOO, Net, Network

# Every fourth network meets one of the noises; all kinds of network and all noises are met.
NETWORKS = list(ZOO.values())[::4]
METHODS = ("exact", "mc", "empirical")


def _plain(one: Problem) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradient of a model that is called as it is."""
    parameters = oracle.trainable(one.model)
    loss = one.loss(oracle.call(one.model, one.x, one.output), one.y)
    found = torch.autograd.grad(
        loss, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    dense = [value.to_dense() if value.is_sparse else value for value in found]
    return loss.detach(), dict(zip(parameters, dense, strict=True))


def _joint(one: Problem, **options: Any) -> lk.GradientAndDiagonal:
    with check.quiet():
        return lk.gradient_and_diag(
            one.model, one.data, one.likelihood, output=one.output, **options
        )


@pytest.mark.parametrize("network", check.networks(NETWORKS))
def test_zoo(network: Network) -> None:
    one = problem(network, check.rotated(network, tuple(check.NOISES)))
    method = check.rotated(network, METHODS)
    loss, gradient = _plain(one)
    found = _joint(one, method=method, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(found.loss, loss, rtol=1e-12, atol=1e-12)
    check.assert_close(found.gradient, gradient)
    with check.quiet():
        alone = lk.diag(
            one.model,
            one.data,
            one.likelihood,
            method,  # pyright: ignore[reportArgumentType]
            output=one.output,
            generator=torch.Generator().manual_seed(3),
        )
    assert found.diagonal.summary == alone.summary
    check.assert_close(found.diagonal, alone, 1e-12)


def _layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.BatchNorm2d(3)),
        *(nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 3)),
        *(nn.Sigmoid(), nn.Flatten(), nn.Linear(4, 3)),
    ).eval()


@pytest.mark.parametrize("method", ["approx", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_approximations(method: Any, dtype: torch.dtype) -> None:
    model = _layers().to(dtype)
    one = check.of(model, torch.randn(5, 1, 6, 6, dtype=dtype), "categorical")
    loss, gradient = _plain(one)
    found = _joint(one, method=method)
    tolerance = 1e4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.loss, loss)
    check.assert_close(found.gradient, gradient, tolerance)
    check.assert_close(found.diagonal, lk.diag(model, one.x, one.likelihood, method), tolerance)


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


def test_chosen_parameters_alone() -> None:
    one = check.of(_layers().double(), torch.randn(2, 1, 6, 6, dtype=torch.float64), "categorical")
    found = _joint(one, params="4")
    assert list(found.gradient) == list(found.diagonal) == ["4.weight", "4.bias"]
    _, gradient = _plain(one)
    check.assert_close(found.gradient, {name: gradient[name] for name in found.gradient})


class _Shared(nn.Module):
    """Two parameters for which autograd has one and the same gradient, and one without any."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.a + self.b)


def test_gradients_are_tensors_of_their_own() -> None:
    one = check.of(_Shared().double(), torch.randn(4, 3, dtype=torch.float64))
    found = _joint(one, method="exact")
    _, gradient = _plain(one)
    check.assert_close(found.gradient, gradient)
    places = {value.data_ptr() for value in found.gradient.values()}
    assert len(places) == len(found.gradient)


@pytest.mark.parametrize("function", [lambda x: x + x, lambda x: x * x * x], ids=["sum", "cube"])
def test_operands_that_stand_twice(function: Callable[[Tensor], Tensor]) -> None:
    model = Net(lambda net, x: net.last(function(net.first(x))))
    model.first, model.last = nn.Linear(3, 4), nn.Linear(4, 2)
    one = check.of(model.double(), torch.randn(5, 3, dtype=torch.float64))
    _, gradient = _plain(one)
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


def test_one_step_of_an_optimiser() -> None:
    """The gradients make the step that backward makes."""
    one = check.of(_layers().double(), torch.randn(5, 1, 6, 6, dtype=torch.float64), "categorical")
    found = _joint(one)
    _, gradient = _plain(one)
    for name, parameter in one.model.named_parameters():
        parameter.grad = found.gradient[name]
    wanted = {name: p.detach() - 0.1 * gradient[name] for name, p in one.model.named_parameters()}
    torch.optim.SGD(one.model.parameters(), 0.1).step()
    check.assert_close({name: p.detach() for name, p in one.model.named_parameters()}, wanted)


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
