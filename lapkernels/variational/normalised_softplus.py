r"""Second derivatives of batch norm, softplus, and softplus of batch norm.

A norm and the softplus behind it are fused: nothing between them is saved for either pass, so a
step saves five tensors for each convolution instead of seven.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

_batch_norm_backward = torch.ops.aten.native_batch_norm_backward
_softplus_backward = torch.ops.aten.softplus_backward


class Normalised(NamedTuple):
    """The output y of a batch norm, and its inputs."""

    y: Tensor
    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    r: Tensor
    eps: float
    versions: tuple[int, int]

    def is_unchanged(self, tensor: Tensor) -> bool:
        """Whether the tensor is y, and neither y nor x was changed since."""
        return tensor is self.y and (self.y._version, self.x._version) == self.versions


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Normalised:
    """Batch norm in training mode of [N, C, ...]."""
    y, mean, r = _BatchNorm.apply(x, weight, bias, (running_mean, running_var), momentum, eps)
    return Normalised(y, x, weight, bias, mean, r, eps, (y._version, x._version))


def softplus(z: Tensor, beta: float, threshold: float) -> Tensor:
    """torch's batch norm, recorded."""
    return _Softplus.apply(z, beta, threshold)


def normalised_softplus(norm: Normalised, beta: float, threshold: float) -> Tensor:
    """Softplus of a norm's output, differentiable in the norm's inputs."""
    return _NormalisedSoftplus.apply(norm.x, norm.weight, norm.bias, norm, beta, threshold)


class _BatchNorm(Function):
    """y = weight * (x - mean) r + bias, r = 1 / sqrt(var + eps), by the batch's own statistics.

    Also returns mean and r, which are constants to autograd.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        y, mean, r = torch.native_batch_norm(x, weight, bias, *running, True, momentum, eps)
        ctx.mark_non_differentiable(mean, r)
        ctx.save_for_backward(x, weight, mean, r)
        ctx.eps, ctx.wanted = eps, ctx.needs_input_grad[:3]
        return y, mean, r

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if grads[0] is None:
            return (None,) * 6
        x, weight, mean, r = ctx.saved_tensors
        found = _Gradient.apply(grads[0], None, None, 1.0, x, weight, mean, r, ctx.eps, ctx.wanted)
        return *found, None, None, None


class _Softplus(Function):
    """a = log(1 + exp(beta z)) / beta, with its slope s = 1 - exp(-beta a) kept in place of z."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, beta: float, threshold: float) -> Tensor:
        a = F.softplus(z, beta, threshold)
        ctx.save_for_backward(a, _slope(z, beta, threshold))
        ctx.beta = beta
        return a

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _SoftplusGradient.apply(grads[0], *ctx.saved_tensors, ctx.beta), None, None


class _NormalisedSoftplus(Function):
    """a = softplus(y) of a norm's output, as a function of the norm's inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        norm: Normalised,
        beta: float,
        threshold: float,
    ) -> Tensor:
        y = norm.y.detach()
        a = F.softplus(y, beta, threshold)
        ctx.save_for_backward(a, _slope(y, beta, threshold), x, weight, norm.mean, norm.r)
        ctx.eps, ctx.wanted, ctx.beta = norm.eps, ctx.needs_input_grad[:3], beta
        return a

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        a, s, *normed = ctx.saved_tensors
        found = _Gradient.apply(grads[0], a, s, ctx.beta, *normed, ctx.eps, ctx.wanted)
        return *found, None, None, None


class _SoftplusGradient(Function):
    """From g to g s. With the cotangent u: u s in g, and beta u g (1 - s) in a."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, a: Tensor, s: Tensor, beta: float) -> Tensor:
        ctx.save_for_backward(g, a, s)
        ctx.beta = beta
        return g * s

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        g, a, s = ctx.saved_tensors
        return *_through_slope(grads[0], g, _differentiable(s, a, ctx.beta), ctx.beta), None, None


class _Gradient(Function):
    r"""From g to (weight r (h - h̄ - x̂ d), m d, m h̄), with h = g s (or g) and d = mean(h x̂).

    Here x̂ = (x - mean) r, and all means are over the m entries of a channel. With cotangents u, p,
    q and t = mean(u x̂), the gradients of Φ = weight r K + m p d + m q h̄, where
    K = m (mean(u h) - ū h̄ - t d), are

        in h:  weight r (u - ū - x̂ t) + p x̂ + q,        in weight:  r K,
        in x:  r (w - w̄ - x̂ mean(w x̂)) - weight K r² x̂ / m,   w = p h - weight r (d u + t h).
    """

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        a: Tensor | None,
        s: Tensor | None,
        beta: float,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor,
        r: Tensor,
        eps: float,
        wanted: Sequence[bool],
    ) -> Any:
        ctx.set_materialize_grads(False)
        h = g if s is None else g * s
        found = _batch_norm_backward(h, x, weight, None, None, mean, r, True, eps, list(wanted))
        ctx.save_for_backward(g, a, s, x, weight, mean, r, *found[1:])
        ctx.eps, ctx.beta = eps, beta
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        g, a, s, x, weight, mean, r, dot, total = ctx.saved_tensors
        if s is not None:
            s = _differentiable(s, a, ctx.beta)
        count = x.numel() // x.shape[1]
        if torch.is_grad_enabled():
            # For a third derivative: the statistics depend on x, the sums on g.
            mean = _channel_sum(x) / count
            r = (_channel_sum((x - _by_channel(mean, x)).square()) / count + ctx.eps).rsqrt()
            dot = total = None
        h = g if s is None else g * s
        # Then h and to_h are temporaries, with no graph.
        free = s is not None and not torch.is_grad_enabled()
        to_h, to_x, to_weight = _normalised_gradients(
            grads, h, x, weight, mean, r, dot, total, free
        )
        to_g, to_a = (to_h, None) if s is None else _through_slope(to_h, g, s, ctx.beta, free)
        to_weight = to_weight if ctx.needs_input_grad[5] else None
        return to_g, to_a, None, None, to_x, to_weight, None, None, None, None


def _normalised_gradients(
    cotangents: Sequence[Tensor | None],
    h: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    r: Tensor,
    dot: Tensor | None,
    total: Tensor | None,
    free: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of Φ above in h, x and weight; ``dot`` is m d and ``total`` m h̄, if known.

    If h is ``free``, the second is written into its memory.
    """
    u, p, q = cotangents
    count = x.numel() // x.shape[1]
    zero = torch.zeros_like(mean)
    weight = torch.ones_like(mean) if weight is None else weight
    p, q = zero if p is None else p, zero if q is None else q
    h_mean = (_channel_sum(h) if total is None else total) / count
    d = r * (_channel_dot(h, x) / count - mean * h_mean) if dot is None else dot / count
    if u is None:
        u_mean, t, k = zero, zero, zero
    else:
        u_mean = _channel_sum(u) / count
        t = r * (_channel_dot(u, x) / count - mean * u_mean)
        k = count * (_channel_dot(u, h) / count - u_mean * h_mean - t * d)
    scale = weight * r
    # Every result is alpha u + beta h + gamma x̂ + delta by channel, and x̂ = r x - r mean.
    slope = p - scale * t
    to_h = _combined((scale, u), (r * slope, x), offset=q - scale * u_mean - r * mean * slope)
    w_mean = p * h_mean - scale * (d * u_mean + t * h_mean)
    gamma = -r * (p * d - 2 * scale * t * d) - scale * k * r / count
    to_x = _combined(
        (r * slope, h),
        (-scale * r * d, u),
        (gamma * r, x),
        offset=-r * w_mean - gamma * r * mean,
        in_place=free,
    )
    return to_h, to_x, r * k


def _through_slope(
    u: Tensor, g: Tensor, s: Tensor, beta: float, free: bool = False
) -> tuple[Tensor, Tensor]:
    """Gradients of sum(u g s) in g and in a, of which s is a function.

    If u is ``free``, the second is written into its memory.
    """
    to_g = u * s
    to_a = (u.sub_(to_g) if free else u - to_g).mul_(g)
    return to_g, to_a if beta == 1 else to_a.mul_(beta)


def _differentiable(s: Tensor, a: Tensor, beta: float) -> Tensor:
    """s, as a function of a if wanted; one where torch's softplus is linear."""
    return torch.where(s == 1, s, -torch.expm1(-beta * a)) if torch.is_grad_enabled() else s


def _slope(z: Tensor, beta: float, threshold: float) -> Tensor:
    """The derivative of softplus, exactly one where torch's is linear."""
    return _softplus_backward(z.new_ones(()).expand_as(z), z, beta, threshold)


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 2))


def _channel_sum(a: Tensor) -> Tensor:
    return a.sum([0, *range(2, a.dim())])


def _channel_dot(a: Tensor, b: Tensor) -> Tensor:
    """sum of a b over all but channels, without a tensor for the product."""
    rows = (t.reshape(*t.shape[:2], -1) for t in (a, b))
    return torch.linalg.vecdot(*rows).sum(0)


def _combined(
    *terms: tuple[Tensor, Tensor | None], offset: Tensor, in_place: bool = False
) -> Tensor:
    """The sum of coefficient [C] times tensor [N, C, ...], and an offset [C].

    It may overwrite the first tensor.
    """
    total: Tensor | None = None
    for coefficient, tensor in terms:
        if tensor is None:
            continue
        factor = _by_channel(coefficient, tensor)
        if total is None:
            # In two steps: addcmul with a broadcast offset takes twice as long.
            total = tensor.mul_(factor) if in_place else tensor * factor
            total.add_(_by_channel(offset, tensor))
        else:
            total.addcmul_(tensor, factor)
    assert total is not None
    return total
