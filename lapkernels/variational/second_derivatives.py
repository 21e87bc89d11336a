r"""Second derivatives of convolutions, batch norm and softplus in as few passes as there can be.

The gradient of a function of gradients goes back through the backward pass. What torch runs there
for a convolution z = w * x are convolutions with the batch as channels, for batch normalisation
some fifty elementwise ops, and for softplus an exponential each time. Inside
``lean_second_derivatives`` all three are written out instead, so that the second pass costs about
twice the first, as its arithmetic says. Everything else is torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from lapkernels.variational.convolution_calls import CONVOLUTIONS, convolution_geometry

_convolution_backward = torch.ops.aten.convolution_backward
_batch_norm_backward = torch.ops.aten.native_batch_norm_backward
_sigmoid_backward = torch.ops.aten.sigmoid_backward
_softplus_backward = torch.ops.aten.softplus_backward


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
    """From g, x, w to w^T * g, g * x and the sum of g: linear in each, so all follows from them."""

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


class _BatchNorm(Function):
    """y = weight * (x - mean) r + bias, r = 1 / sqrt(var + eps), by the batch's own statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        eps: float,
    ) -> Tensor:
        y, mean, r = torch.native_batch_norm(x, weight, bias, *running, True, momentum, eps)
        ctx.save_for_backward(x, weight, mean, r)
        ctx.eps, ctx.wanted = eps, ctx.needs_input_grad[:3]
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        found = _BatchNormGradient.apply(grads[0], *ctx.saved_tensors, ctx.eps, ctx.wanted)
        return *found, None, None, None


class _BatchNormGradient(Function):
    r"""From g to (weight r (g - ḡ - x̂ s), m s, m ḡ), with x̂ = (x - mean) r, s = mean(g x̂).

    All means are over the m entries of a channel. With cotangents u, p, q and t = mean(u x̂), the
    gradients of Φ = weight r K + m p s + m q ḡ, K = m (mean(u g) - ū ḡ - t s), are

        in g:  weight r (u - ū - x̂ t) + p x̂ + q,        in weight:  r K,
        in x:  r (w - w̄ - x̂ mean(w x̂)) - weight K r² x̂ / m,   w = p g - weight r (s u + t g).
    """

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor,
        r: Tensor,
        eps: float,
        wanted: Sequence[bool],
    ) -> Any:
        ctx.set_materialize_grads(False)
        found = _batch_norm_backward(g, x, weight, None, None, mean, r, True, eps, list(wanted))
        ctx.save_for_backward(g, x, weight, mean, r, *found[1:])
        ctx.eps = eps
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        u, p, q = grads
        g, x, weight, mean, r, dot, total = ctx.saved_tensors
        count = x.numel() // x.shape[1]
        if torch.is_grad_enabled():
            # A third derivative: the statistics depend on x, and sums on g.
            mean = _channel_sum(x) / count
            r = (_channel_sum((x - _by_channel(mean, x)).square()) / count + ctx.eps).rsqrt()
            dot = total = None
        zero = torch.zeros_like(mean)
        weight = torch.ones_like(mean) if weight is None else weight
        p, q = zero if p is None else p, zero if q is None else q
        g_mean = (_channel_sum(g) if total is None else total) / count
        s = r * (_channel_dot(g, x) / count - mean * g_mean) if dot is None else dot / count
        if u is None:
            u_mean, t, k = zero, zero, zero
        else:
            u_mean = _channel_sum(u) / count
            t = r * (_channel_dot(u, x) / count - mean * u_mean)
            k = count * (_channel_dot(u, g) / count - u_mean * g_mean - t * s)
        a = weight * r
        # Every result is alpha u + beta g + gamma x̂ + delta by channel, and x̂ = r x - r mean.
        slope = p - a * t
        to_g = _combined((a, u), (r * slope, x), offset=q - a * u_mean - r * mean * slope)
        w_mean = p * g_mean - a * (s * u_mean + t * g_mean)
        gamma = -r * (p * s - 2 * a * t * s) - a * k * r / count
        to_x = _combined(
            (-a * r * s, u),
            (r * (p - a * t), g),
            (gamma * r, x),
            offset=-r * w_mean - gamma * r * mean,
        )
        to_weight = r * k if ctx.needs_input_grad[2] else None
        return to_g, to_x, to_weight, None, None, None, None


class _Softplus(Function):
    """a = log(1 + exp(beta z)) / beta, with the slope s = sigmoid(beta z) kept for all passes."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, beta: float, threshold: float) -> Tensor:
        ctx.save_for_backward(z, _slope(z, beta, threshold))
        ctx.how = beta, threshold
        return F.softplus(z, beta, threshold)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _SoftplusGradient.apply(grads[0], *ctx.saved_tensors, ctx.how), None, None


class _SoftplusGradient(Function):
    """From g to g s. With the cotangent u: u s in g, and beta u g s (1 - s) in z."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, z: Tensor, s: Tensor, how: tuple[float, float]) -> Tensor:
        ctx.save_for_backward(g, z, s)
        ctx.how = how
        return g * s

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (u,) = grads
        g, z, s = ctx.saved_tensors
        if torch.is_grad_enabled():
            s = _slope(z, *ctx.how)
        return u * s, _sigmoid_backward((u * g).mul_(ctx.how[0]), s), None, None


def _slope(z: Tensor, beta: float, threshold: float) -> Tensor:
    """The derivative of softplus, exactly one where torch takes it for linear."""
    return _softplus_backward(z.new_ones(()).expand_as(z), z, beta, threshold)


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 2))


def _channel_sum(a: Tensor) -> Tensor:
    return a.sum([0, *range(2, a.dim())])


def _channel_dot(a: Tensor, b: Tensor) -> Tensor:
    return _channel_sum(a * b)


def _combined(*terms: tuple[Tensor, Tensor | None], offset: Tensor) -> Tensor:
    """The sum of coefficient [C] times tensor [N, C, ...], and an offset [C]."""
    total: Tensor | None = None
    for coefficient, tensor in terms:
        if tensor is None:
            continue
        factor = _by_channel(coefficient, tensor)
        if total is None:
            # In two steps: addcmul with a broadcast offset takes twice as long.
            total = (tensor * factor).add_(_by_channel(offset, tensor))
        else:
            total.addcmul_(tensor, factor)
    assert total is not None
    return total


def _convolution(
    func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **named: Any
) -> Tensor | None:
    geometry = convolution_geometry(func, weight, *rest, **named)
    # Unbatched input, and more padding on one side than on the other, are torch's own.
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
    func: Any,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    if not training or x.dtype not in (torch.float32, torch.float64):
        return None
    return _BatchNorm.apply(x, weight, bias, (running_mean, running_var), momentum, eps)


def _softplus(func: Any, z: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return _Softplus.apply(z, beta, threshold)


_LEAN: Mapping[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    F.batch_norm: _batch_norm,
    F.softplus: _softplus,
}


class lean_second_derivatives(TorchFunctionMode):
    """Inside, convolutions and batch norms have lean second derivatives."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        lean = _LEAN.get(func)
        if lean is not None:
            found = lean(func, *args, **(kwargs or {}))
            if found is not None:
                return found
        return func(*args, **(kwargs or {}))
