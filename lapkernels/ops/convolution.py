"""A convolution layer as torch has it, with its gradient, by kernels made for few channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops._library import kernel_for
from lapkernels.ops._routes import needs_graph
from lapkernels.ops.conv_input import CONV_INPUT, library_is_faster
from lapkernels.ops.conv_weight import CONV_WEIGHT
from lapkernels.ops.geometry import once_per_size

# Products, one for each input position and entry of the weight, below which the way to a kernel
# costs more than it saves.
LEAST = 1 << 18


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """``torch.convolution`` with the same arguments: [N, O, *out] of ``x`` [N, I, *in].

    Layers of few channels go to kernels of ours, all others to torch's library.
    """
    taps = (stride, padding, dilation, transposed, output_padding, groups)
    shape = our_shape(x, weight, bias, *taps)
    kernel = None
    if shape is not None:
        kernel = kernel_for("conv_input", [x, weight] if bias is None else [x, weight, bias])
    if shape is None or kernel is None:
        return torch.convolution(x, weight, bias, *taps)
    if needs_graph(x, weight, bias):
        return _Convolution.apply(x, weight, bias, shape, kernel, *taps)  # pyright: ignore
    return _run(x, weight, bias, shape, kernel, *taps)


def our_shape(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> list[int] | None:
    """Shape of the result if a kernel of ours is to make it.

    None for torch to serve: it is faster there, or the arguments do not go together.
    """
    if x.dim() != weight.dim() or x.numel() * weight.numel() < LEAST * x.shape[1]:
        return None
    if bias is not None and not bias.is_contiguous():
        return None
    lists = (tuple(stride), tuple(padding), tuple(dilation), tuple(output_padding))
    sizes = (x.shape, weight.shape, None if bias is None else bias.shape)
    return _shape(*sizes, *lists, transposed, groups)


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: Sequence[int],
    kernel: Callable[..., None],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """The transpose of the layer's transpose, straight from its kernel."""
    out = x.new_empty(shape)
    taps = (stride, padding, dilation, groups, not transposed)
    kernel(out, 0.0, 1.0, x, weight, bias, shape[2:], *taps)
    return out


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shape: Sequence[int],
        kernel: Callable[..., None],
        *taps: Any,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.taps = bias is not None, taps
        return _run(x, weight, bias, shape, kernel, *taps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        channels = [weight.shape[1] * ctx.taps[5] if ctx.taps[3] else weight.shape[0]]
        found: Sequence[Tensor | None]
        if torch.is_grad_enabled():
            # To be differentiated again.
            found = torch.ops.aten.convolution_backward(
                grad, x, weight, channels if ctx.has_bias else None, *ctx.taps, needs
            )
        else:
            stride, padding, dilation, transposed, _, groups = ctx.taps
            pair = (x, grad) if transposed else (grad, x)
            found = (
                CONV_INPUT(
                    *(grad, weight, None, list(x.shape[2:])),
                    *(stride, padding, dilation, groups, transposed),
                )
                if needs[0]
                else None,
                CONV_WEIGHT(
                    *(part.unsqueeze(0) for part in pair),
                    *(list(weight.shape[2:]), stride, padding, dilation, groups),
                )
                if needs[1]
                else None,
                grad.transpose(0, 1).flatten(1).sum(1) if needs[2] else None,
            )
        return (*found, *[None] * 8)


@once_per_size
def _shape(
    x: Sequence[int],
    weight: Sequence[int],
    bias: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    transposed: bool,
    groups: int,
) -> list[int] | None:
    """Shape of the result if a kernel is to make it, whatever its size."""
    rows, columns, *kernel = weight
    if library_is_faster(weight, groups):
        return None
    channels, made = (rows, columns * groups) if transposed else (columns * groups, rows)
    if made > 4 * channels:
        # Many channels out of few are what torch's library does well.
        return None
    if x[1] != channels or rows % groups:
        return None
    if bias is not None and tuple(bias) != (made,):
        return None
    size: list[int] = []
    for length, k, step, pad, spread, extra in zip(
        x[2:], kernel, stride, padding, dilation, output_padding, strict=True
    ):
        reach = spread * (k - 1) + 1
        if transposed:
            size.append((length - 1) * step - 2 * pad + reach + extra)
        else:
            size.append((length + 2 * pad - reach) // step + 1)
    return [x[0], made, *size] if min(size) > 0 else None
