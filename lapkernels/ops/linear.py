"""A Linear layer as torch has it, by a kernel for the few rows of a batch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops._library import kernel_for
from lapkernels.ops._routes import needs_graph

# Rows up to which, and entries of the weight from which on, the kernel is faster than torch.
MOST_ROWS = 24
LEAST = 1 << 17


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + bias [N, O] of ``x`` [N, I]: ``torch.nn.functional.linear``, and that with a graph."""
    if (
        x.dim() == 2 == weight.dim()
        and x.shape[0] <= MOST_ROWS
        and weight.numel() >= LEAST
        and 16 <= x.shape[1] == weight.shape[1]
        and x.stride(1) == 1 == weight.stride(1)
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
        and not needs_graph(x, weight, bias)
    ):
        kernel = kernel_for("linear", [x, weight] if bias is None else [x, weight, bias])
        if kernel is not None:
            out = x.new_empty(x.shape[0], weight.shape[0])
            kernel(out, x, weight, bias)
            return out
    return F.linear(x, weight, bias)
