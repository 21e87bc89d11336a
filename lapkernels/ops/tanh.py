"""tanh as torch has it, by a kernel that takes a third of the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops._library import kernel_for
from lapkernels.ops._routes import needs_graph

# Entries below which the way to a kernel costs more than it saves.
LEAST = 1 << 12


def tanh(x: Tensor) -> Tensor:
    """``torch.tanh``, within 2 units in the last place; float32 alone goes to the kernel."""
    if tanh_is_ours(x):
        kernel = kernel_for("tanh", [x])
        if kernel is not None:
            return _Tanh.apply(x, kernel) if needs_graph(x) else _run(x, kernel)  # pyright: ignore
    return torch.tanh(x)


def tanh_is_ours(x: Tensor) -> bool:
    """Whether a kernel is the faster one for a tensor like this, and takes it."""
    return x.dtype == torch.float32 and x.numel() >= LEAST and x.is_contiguous()


def _run(x: Tensor, kernel: Callable[..., Any]) -> Tensor:
    out = torch.empty_like(x)
    kernel(out, x)
    return out


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Callable[..., Any]) -> Tensor:
        out = _run(x, kernel)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grads[0], out), None
