"""What the source of a generated model calls besides torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=torch.float64))


def tied(other: Any) -> nn.Linear:
    """A layer with a bias of its own and the weight of another."""
    layer = nn.Linear(other.in_features, other.out_features)
    layer.weight = other.weight
    return layer


def with_statistics(norm: Any) -> Any:
    """A batch norm whose running statistics are not those of the start."""
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 1.5)
    return norm


def _scaled(grads: Any) -> Any:
    return tuple(None if grad is None else 2 * grad for grad in grads)


def _look(module: nn.Module, inputs: Any, out: Tensor) -> None:
    """A statistic of the whole batch, which reaches nothing."""
    (out.flatten(1).T @ out.flatten(1)).trace()


_HOOKS: dict[str, Callable[[Any], Any]] = {
    "backward": lambda m: m.register_full_backward_hook(lambda m, gi, go: _scaled(gi)),
    "backward pre": lambda m: m.register_full_backward_pre_hook(lambda m, go: _scaled(go)),
    "statistic": lambda m: m.register_forward_hook(_look),
    "detached statistic": lambda m: m.register_forward_hook(
        lambda m, i, o: _look(m, i, o.detach())
    ),
    "output": lambda m: m.register_forward_hook(lambda m, inputs, out: 3 * out),
    "input": lambda m: m.register_forward_pre_hook(lambda m, inputs: (0.5 * inputs[0],)),
    "parameter": lambda m: m.weight.register_hook(lambda grad: 2 * grad),
}


def hooked(module: nn.Module, kind: str) -> nn.Module:
    _HOOKS[kind](module)
    return module


def function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """A custom autograd.Function; `backward` gets the gradients and then the operands."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *operands: Tensor) -> Any:
            ctx.save_for_backward(*operands)
            return forward(*operands)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return backward(*grads, *ctx.saved_tensors)

    return Function.apply


sine = function(torch.sin, lambda g, x: g * x.cos())
product = function(torch.mul, lambda g, x, w: (g * w, (g * x).sum(0)))  # w has no samples
both = function(lambda x: (x.exp(), x.square()), lambda a, b, x: a * x.exp() + 2 * b * x)
rounded = function(torch.round, lambda g, x: g)
reversed_gradient = function(lambda x: x.view_as(x), lambda g, x: -g)


@torch.jit.script
def scripted_activation(x: Tensor) -> Tensor:
    return x.tanh() * 2


@torch.jit.script
def scripted_product(x: Tensor, w: Tensor) -> Tensor:
    return torch.sigmoid(x) * w + x


@torch.jit.script
def scripted_linear(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x.matmul(w)) * 0.5


@torch.jit.script
def scripted_weight(w: Tensor) -> Tensor:
    return w / (1 + w.square().sum().sqrt())


@torch.jit.script
def scripted_loop(x: Tensor) -> Tensor:
    for _n in range(2):
        x = torch.sin(x) + 0.5 * x
    return x


@torch.jit.script
def scripted_pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, torch.tanh(x - y)


# From its second call on, a scripted function is what its first call was seen to need.
for _ in range(4):
    _x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    _w = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    for _f in (scripted_activation, scripted_weight, scripted_loop):
        _f(_w)
    for _f, _other in ((scripted_product, _w[0]), (scripted_linear, _w), (scripted_pair, _x.cos())):
        _f(_x, _other)
