"""In-place ops inside a model give what the ops that make a new tensor give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature.zoo.network import Apply

MASK = torch.tensor([True, False, True, False])
INDEX = torch.tensor([2, 0])

PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    **{
        name: (
            lambda x, name=name: getattr(x, f"{name}_")(),
            lambda x, name=name: getattr(x, name)(),
        )
        for name in (
            *("relu", "sigmoid", "tanh", "exp", "sin", "cos", "abs", "neg", "expm1"),
            *("erf", "sinh", "cosh", "atan", "reciprocal", "tan", "deg2rad", "frac"),
        )
    },
    "silu": (lambda x: F.silu(x, inplace=True), F.silu),
    "mish": (lambda x: F.mish(x, inplace=True), F.mish),
    "elu": (lambda x: F.elu(x, 0.7, inplace=True), lambda x: F.elu(x, 0.7)),
    "selu": (lambda x: F.selu(x, inplace=True), F.selu),
    "celu": (lambda x: F.celu(x, 0.7, inplace=True), lambda x: F.celu(x, 0.7)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.3, inplace=True), lambda x: F.leaky_relu(x, 0.3)),
    "hardtanh": (lambda x: F.hardtanh(x, inplace=True), F.hardtanh),
    "hardswish": (lambda x: F.hardswish(x, inplace=True), F.hardswish),
    "hardsigmoid": (lambda x: F.hardsigmoid(x, inplace=True), F.hardsigmoid),
    "threshold": (lambda x: F.threshold(x, 0.1, 2, inplace=True), lambda x: F.threshold(x, 0.1, 2)),
    "mul": (lambda x: x.mul_(2.5), lambda x: x.mul(2.5)),
    "mul-tensor": (lambda x: (x + 1).mul_(x), lambda x: (x + 1) * x),
    "mul-itself": (lambda x: x.mul_(x), lambda x: x * x),
    "div": (lambda x: x.div_(2.5), lambda x: x.div(2.5)),
    "add": (lambda x: x.add_(1.0), lambda x: x.add(1.0)),
    "add-tensor": (lambda x: x.sin().add_(x, alpha=0.5), lambda x: x.sin() + 0.5 * x),
    "sub": (lambda x: x.cos().sub_(x), lambda x: x.cos() - x),
    "pow": (lambda x: x.pow_(3), lambda x: x.pow(3)),
    "clamp": (lambda x: x.clamp_(-0.2, 0.3), lambda x: x.clamp(-0.2, 0.3)),
    "lerp": (lambda x: x.sin().lerp_(x, 0.3), lambda x: x.sin().lerp(x, 0.3)),
    "addcmul": (lambda x: x.sin().addcmul_(x, x), lambda x: x.sin() + x * x),
    "masked_fill": (lambda x: x.masked_fill_(MASK, 0.1), lambda x: x.masked_fill(MASK, 0.1)),
    "cumsum": (lambda x: x.cumsum_(1), lambda x: x.cumsum(1)),
    "cumprod": (lambda x: x.cumprod_(1), lambda x: x.cumprod(1)),
    "index_fill": (lambda x: x.index_fill_(1, INDEX, 0.5), lambda x: x.index_fill(1, INDEX, 0.5)),
    "index_add": (
        lambda x: x.sin().index_add_(1, INDEX, x[:, :2]),
        lambda x: x.sin().index_add(1, INDEX, x[:, :2]),
    ),
    "index_put": (
        lambda x: x.sin().index_put_((torch.arange(3)[:, None], INDEX), x[:, :2]),
        lambda x: torch.stack([x[:, 1], x[:, 1].sin(), x[:, 0], x[:, 3].sin()], 1),
    ),
    "scatter": (
        lambda x: x.sin().scatter_(1, INDEX.expand(3, 2), x[:, :2]),
        lambda x: x.sin().scatter(1, INDEX.expand(3, 2), x[:, :2]),
    ),
}


@pytest.mark.parametrize("method", ["exact", "approx"])
@pytest.mark.parametrize("name", PAIRS)
def test_in_place(name: str, method: Literal["exact", "approx"]) -> None:
    first, last = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
    written, fresh = (nn.Sequential(first, Apply(run), last) for run in PAIRS[name])
    x = torch.randn(3, 3, dtype=torch.float64)
    torch.testing.assert_close(written(x), fresh(x))
    found = lk.diag(written, x, method=method, route="rules")
    expected = lk.diag(fresh, x, method=method, route="rules")
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-12, atol=1e-14)
