r"""A diagonal M pushed back through an elementwise activation: :math:`m \, \varphi'(z)^2`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lapkernels.ops.base.geometry import check_same, check_shape
from lapkernels.ops.base.registration import register

aten = torch.ops.aten

# phi' as a function of z; `slope` is LeakyReLU's slope, ELU's alpha or Softplus's beta.
_DERIVATIVES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "identity": lambda z, slope: torch.ones_like(z),
    "given": lambda z, slope: z,
    "relu": lambda z, slope: (z > 0).to(z.dtype),
    "leaky_relu": lambda z, slope: torch.ones_like(z).masked_fill(~(z > 0), slope),
    "elu": lambda z, slope: aten.elu_backward(torch.ones_like(z), slope, 1, 1, False, z),
    "tanh": lambda z, slope: 1 - z.tanh().square(),
    "sigmoid": lambda z, slope: z.sigmoid() * (1 - z.sigmoid()),
    "softplus": lambda z, slope: (slope * z).sigmoid(),
    "silu": lambda z, slope: z.sigmoid() * (1 + z * (1 - z.sigmoid())),
    "gelu": lambda z, slope: aten.gelu_backward(torch.ones_like(z), z),
    "tanh_of_result": lambda y, slope: 1 - y.square(),
    "sigmoid_of_result": lambda y, slope: y * (1 - y),
}
ACTIVATIONS = tuple(_DERIVATIVES)


def squared_derivative(
    m: Tensor,
    z: Tensor,
    activation: str,
    slope: float = 0.0,
    *,
    out: Tensor | None = None,
    decay: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """``m * phi'(z)²`` for tensors of one shape, in one pass.

    ``activation`` is one of ``ACTIVATIONS``: with ``given``, ``z`` is the derivative itself, with
    those ``of_result`` the result of the activation.
    ``slope`` is LeakyReLU's negative slope, ELU's alpha or Softplus's beta.
    With ``out`` the result is ``out <- decay * out + scale * value``, in place.
    """
    check_activation(activation)
    check_same("m", m, z=z)
    check_shape("z", z, m.shape)
    return SQUARED_DERIVATIVE(m, z, activation, slope, out=out, decay=decay, scale=scale)


def check_activation(activation: str) -> None:
    """Raise unless the activation is one whose derivative is known."""
    if activation not in _DERIVATIVES:
        raise ValueError(f"activation={activation!r} must be one of {ACTIVATIONS}")


def derivative(z: Tensor, activation: str, slope: float) -> Tensor:
    """phi'(z), in plain torch."""
    return _DERIVATIVES[activation](z, slope)


def derivative_squared(z: Tensor, activation: str, slope: float) -> Tensor:
    """phi'(z)², in plain torch."""
    return derivative(z, activation, slope).square()


def _reference(m: Tensor, z: Tensor, activation: str, slope: float) -> Tensor:
    return m * derivative_squared(z, activation, slope)


def _shape(m: Tensor, *rest: object) -> Sequence[int]:
    return m.shape


SQUARED_DERIVATIVE = register(
    "squared_derivative",
    "Tensor m, Tensor z, str activation, float slope",
    reference=_reference,
    shape=_shape,
)
