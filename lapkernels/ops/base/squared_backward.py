"""Gradients shared by the ops that square a Jacobian column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops.base.correlation import column_count, jacobian

# Bytes of Jacobian columns held at once while differentiating.
_CHUNK_BYTES = 1 << 24


def squared_backward(
    small: Tensor,
    large: Tensor,
    variance: Tensor,
    coefficient: Tensor | None,
    geometry: Sequence[Any],
    needs: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of sum_{n,v} c[n, v] sum_p variance[p] G[v, n, p]² in small, large and variance.

    ``coefficient`` c is [N, V], all ones when None. Samples are taken a few at a time, so memory
    holds their columns only. ``needs`` tells which of small, large (and variance) want one.
    """
    small_grad = torch.empty_like(small) if needs[0] else None
    large_grad = torch.empty_like(large) if needs[1] else None
    wants_variance = len(needs) > 2 and bool(needs[2])
    variance_grad = torch.zeros_like(variance) if wants_variance else None
    samples, columns = small.shape[1], column_count(small, large)
    sample_bytes = max(1, columns * variance.numel() * small.element_size())
    step = max(1, _CHUNK_BYTES // sample_bytes)
    for start in range(0, samples, step):
        part = slice(start, min(start + step, samples))
        with torch.enable_grad():
            a = small[:, part].detach().requires_grad_()
            b = large[:, part].detach().requires_grad_()
            g = jacobian(a, b, *geometry)
        shape = (columns, -1, *[1] * variance.dim())
        c = 1.0 if coefficient is None else coefficient[part].T.reshape(shape)
        found = torch.autograd.grad(g, (a, b), 2 * c * variance * g.detach())
        if small_grad is not None:
            small_grad[:, part] = found[0]
        if large_grad is not None:
            large_grad[:, part] = found[1]
        if variance_grad is not None:
            variance_grad += (c * g.detach().square()).sum((0, 1))
    return small_grad, large_grad, variance_grad
