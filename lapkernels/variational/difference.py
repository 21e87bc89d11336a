r"""Value and gradient of Variational Laplace's fit in two forward and backward passes.

With v = σ² g̃, the gradient of ½ Σ σ² g̃² in μ is H̃ v = (g̃(μ + ε v) - g̃(μ)) / ε + O(ε). The
gradient of the data comes from the second pass too, so it is taken at μ + ε v.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import get_device_states, set_device_states

from lapkernels.ops import squared_gradient_sum

# -log p of the batch's labels and of drawn ones, with other parameters and buffers in the model.
Losses = Callable[[dict[str, Tensor] | None], tuple[Tensor, Tensor]]


def fit_by_difference(
    model: nn.Module,
    losses: Losses,
    names: Sequence[str],
    log_std: Sequence[nn.Parameter],
    relative: float | None,
) -> Tensor:
    """The fit, whose ``backward`` returns gradients computed in the forward pass.

    ``relative`` is the length of ε v over that of μ; by default a tenth of the square root
    of machine epsilon, where rounding and the O(ε) were found about equal.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    random = _RandomState(list(trained.values()))
    observed, drawn = losses(None)
    gradient = dict(zip(trained, _gradients(drawn, trained.values()), strict=True))
    chosen = [gradient[name] for name in names]
    fixed_log_std = [entry.detach() for entry in log_std]
    value = observed.detach() + 0.5 * squared_gradient_sum(chosen, fixed_log_std)

    direction = [(2 * s).exp() * g for s, g in zip(fixed_log_std, chosen, strict=True)]
    step = _step([trained[name] for name in names], direction, relative)
    moved = {name: p.detach() for name, p in trained.items()}
    for name, v in zip(names, direction, strict=True):
        moved[name] = moved[name].add(v, alpha=step)
    for p in moved.values():
        p.requires_grad_()
    # Copies, so that batch norm statistics are updated once.
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with random.again():
        observed, drawn = losses({**moved, **buffers})
    of_means = _gradients(observed + drawn / step, moved.values())
    for there, here in zip(of_means, gradient.values(), strict=True):
        there.sub_(here, alpha=1 / step)
    of_log_std = [v * g for v, g in zip(direction, chosen, strict=True)]
    return _Known.apply(value, (*of_means, *of_log_std), *trained.values(), *log_std)


def _gradients(loss: Tensor, inputs: Iterable[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(inputs), materialize_grads=True))


def _step(means: Sequence[Tensor], direction: Sequence[Tensor], relative: float | None) -> float:
    """ε. If v is zero, so is the product, for any ε."""
    if relative is None:
        relative = 0.1 * math.sqrt(torch.finfo(means[0].dtype).eps)
    length = _norm(direction)
    return relative * (_norm(means) or 1.0) / length if length > 0 else 1.0


def _norm(tensors: Iterable[Tensor]) -> float:
    with torch.no_grad():
        return math.hypot(*(tensor.norm().item() for tensor in tensors))


class _Known(Function):
    """A value with precomputed gradients in the inputs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                'the gradients of route="difference" are numbers, with no graph: for '
                'create_graph=True use route="exact"'
            )
        return None, None, *(grads[0] * gradient for gradient in ctx.gradients)


class _RandomState:
    """The random state, to be restored: dropout drops the same units in both passes."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._cpu = torch.get_rng_state()
        self._devices = get_device_states(*tensors)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside, random numbers start from the saved state; the present one is restored after."""
        with torch.random.fork_rng(devices=self._devices[0]):
            torch.set_rng_state(self._cpu)
            set_device_states(*self._devices)
            yield
