"""A Linear layer as torch has it, by a kernel for the few rows of a batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops._routes import needs_graph
from lapkernels.ops.run_layers import Layers, can_run, run_layers

# Rows up to which, and entries of the weight from which on, the kernel is faster than torch.
MOST_ROWS = 24
LEAST = 1 << 17


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear``, with its gradient: x Wᵀ + bias [N, O] of ``x`` [N, I]."""
    if linear_is_ours(x, weight, bias):
        read = [weight] if bias is None else [weight, bias]
        if can_run(x, read):
            graph = needs_graph(x, *read)
            return _Linear.apply(x, weight, bias) if graph else _run(x, weight, bias)  # pyright: ignore
    # Of strided sequences torch takes other products, with other last bits, for a gradient.
    return F.linear(x.contiguous() if x.dim() > 2 else x, weight, bias)


def linear_is_ours(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a kernel is the faster one for tensors like these, and takes them."""
    return (
        x.dim() == 2 == weight.dim()
        and x.shape[0] <= MOST_ROWS
        and weight.numel() >= LEAST
        and x.shape[1] == weight.shape[1]
        and x.stride(1) == 1 == weight.stride(1)
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
    )


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    layer = Layers()
    layer.add((x.shape[0], weight.shape[0]), bias is not None)
    return run_layers(layer, x, [weight] if bias is None else [weight, bias])[0]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _run(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            grad @ weight if needs[0] else None,
            grad.T @ x if needs[1] else None,
            grad.sum(0) if needs[2] else None,
        )
