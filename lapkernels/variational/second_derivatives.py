r"""Double backward of convolutions, batch norm and softplus with little work and memory.

In double backward torch runs convolutions with the batch as channels for a convolution z = w * x,
some fifty elementwise ops for batch norm, and an exponential each time for softplus. Inside
``lean_second_derivatives`` their second derivatives are explicit formulas, so that the second pass
costs about twice the first. Everything else is torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from lapkernels.variational.convolution_calls import CONVOLUTIONS, convolution_geometry
from lapkernels.variational.normalised_softplus import (
    Normalised,
    batch_norm,
    normalised_softplus,
    softplus,
)

_convolution_backward = torch.ops.aten.convolution_backward


class _Convolution(Function):
    """z = w * x + b."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Sequence[Any]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.wanted = how, ctx.needs_input_grad[:3]
        return torch.convolution(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *_ConvolutionGradient.apply(grads[0], *ctx.saved_tensors, ctx.how, ctx.wanted), None


class _ConvolutionGradient(Function):
    """From g, x, w to w^T * g, g * x and the sum of g, each multilinear in g, x and w."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, weight: Tensor, how: Sequence[Any], wanted: Sequence[bool]
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g, x, weight)
        ctx.how = how
        sizes = [g.shape[1]]
        return _convolution_backward(g, x, weight, sizes, *how, list(wanted))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Cotangents u of the input's gradient, v of the weight's and q of the bias's."""
        u, v, q = grads
        g, x, weight = ctx.saved_tensors
        to_g, to_x, to_weight = None, None, None
        if ctx.needs_input_grad[0]:
            if u is not None:
                to_g = torch.convolution(u, weight, q, *ctx.how)
            if v is not None:
                other = torch.convolution(x, v, None if u is not None else q, *ctx.how)
                to_g = other if to_g is None else to_g.add_(other)
            if u is None and v is None and q is not None:
                to_g = q.view(-1, *[1] * (g.dim() - 2)).expand_as(g)
        mask = [
            v is not None and ctx.needs_input_grad[1],
            u is not None and ctx.needs_input_grad[2],
        ]
        if any(mask):
            to_x, to_weight, _ = _convolution_backward(
                g, x if u is None else u, weight if v is None else v, None, *ctx.how, [*mask, False]
            )
        return to_g, to_x, to_weight, None, None


def _convolution(
    func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **named: Any
) -> Tensor | None:
    geometry = convolution_geometry(func, weight, *rest, **named)
    # Unbatched inputs and asymmetric padding are left to torch.
    if x.dim() != weight.dim() or any(before != after for before, after in geometry.padding):
        return None
    how = (
        list(geometry.stride),
        [before for before, _ in geometry.padding],
        list(geometry.dilation),
        geometry.transposed,
        list(geometry.output_padding),
        geometry.groups,
    )
    return _Convolution.apply(x, weight, bias, how)


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Normalised | None:
    if not training or x.dtype not in (torch.float32, torch.float64):
        return None
    return batch_norm(x, running_mean, running_var, weight, bias, momentum, eps)


class lean_second_derivatives(TorchFunctionMode):
    """Inside, convolutions, batch norms and softplus use these second derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self._norm: Normalised | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = None
        if func in CONVOLUTIONS:
            found = _convolution(func, *args, **kwargs)
        elif func is F.batch_norm:
            self._norm = _batch_norm(*args, **kwargs)
            found = None if self._norm is None else self._norm.y
        elif func is F.softplus:
            found = self._softplus(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found

    def __exit__(self, *raised: Any) -> None:
        self._norm = None
        super().__exit__(*raised)

    def _softplus(self, input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
        norm, self._norm = self._norm, None
        if norm is not None and norm.is_unchanged(input):
            return normalised_softplus(norm, beta, threshold)
        return softplus(input, beta, threshold)
