"""Max pooling of images by a kernel, with the indices of the maxima, as torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.kernels import compiled
from lapkernels.ops import serving
from lapkernels.ops.base.registration import kernel_for, needs_graph


def max_pool2d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    """Maxima [N, C, *out] of the windows of ``x`` [N, C, H, W], and their flat indices.

    Equal to ``torch.max_pool2d_with_indices``.
    """
    windows = (kernel_size, stride, padding, dilation)
    size = _output_size(x, *windows, ceil_mode)
    if size is None:
        return F.max_pool2d(x, *windows, ceil_mode, return_indices=True)  # pyright: ignore
    if needs_graph(x):
        return _MaxPool.apply(x, size, *windows, ceil_mode)  # pyright: ignore[reportReturnType]
    return _run(x, size, *windows)


def _run(x: Tensor, size: tuple[int, int], *windows: Sequence[int]) -> tuple[Tensor, Tensor]:
    out = x.new_empty(*x.shape[:2], *size)
    index = torch.empty_like(out, dtype=torch.int64)
    kernel = compiled("max_pool", x)
    assert kernel is not None
    kernel(out, index, x, *windows)
    return out, index


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: tuple[int, int], *windows: Any) -> tuple[Tensor, Tensor]:
        out, index = _run(x, size, *windows[:4])
        ctx.save_for_backward(x, index)
        ctx.windows = windows
        ctx.mark_non_differentiable(index)
        return out, index

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, index = ctx.saved_tensors
        pull = torch.ops.aten.max_pool2d_with_indices_backward
        return (pull(grads[0], x, *ctx.windows, index), *[None] * 6)


def _output_size(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[int, int] | None:
    """Spatial size of the result if the kernel serves; None if torch does."""
    if (
        x.dim() != 4
        or not x.is_contiguous()
        or x.shape[2] * x.shape[3] >= 1 << 31
        or not serving.max_pool_by_kernel(x.numel(), x.shape[2] * x.shape[3])
        or not kernel_for("max_pool", [x])
    ):
        return None
    size = []
    for length, kernel, step, pad, spread in zip(
        x.shape[2:], kernel_size, stride, padding, dilation, strict=True
    ):
        room = length + 2 * pad - spread * (kernel - 1) - 1
        if min(kernel, step, spread) < 1 or pad < 0 or 2 * pad > kernel or room < 0:
            return None
        count = (room + (step - 1 if ceil_mode else 0)) // step + 1
        # The last window has to start inside, or in the padding at the start.
        if ceil_mode and (count - 1) * step >= length + pad:
            count -= 1
        size.append(count)
    return size[0], size[1]
