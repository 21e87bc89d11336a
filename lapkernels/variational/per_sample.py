r"""Squared gradients of single samples, differentiable: :math:`\sum_n \sum_p \sigma_p^2 g_{n,p}^2`.

The forward pass records where each parameter enters. For a Linear or convolution the squares come
from its input and the gradient at its output, by the op ``jacobian_squared_sum``; for the scale and
shift of a normalisation from copies of them, one for each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lapkernels.curvature.errors import Refused
from lapkernels.ops import Geometry, jacobian_squared_sum, jacobian_squared_sum_bias
from lapkernels.variational.convolution_calls import CONVOLUTIONS, convolution_geometry


@dataclass(frozen=True)
class _Layer:
    """z = W x + b, W and b the parameters of these names."""

    weight: str | None
    bias: str | None
    x: Tensor
    z: Tensor
    geometry: Geometry

    def squares(self, gradient: Tensor) -> dict[str, Tensor]:
        """The sums over samples, given the gradient at z."""
        columns = gradient.unsqueeze(0)
        found = {}
        if self.weight is not None:
            found[self.weight] = jacobian_squared_sum(columns, self.x, self.geometry)
        if self.bias is not None:
            found[self.bias] = jacobian_squared_sum_bias(columns, self.geometry)
        return found


@dataclass(frozen=True)
class _Copies:
    """A parameter of which each sample used a copy of its own, z [N, *shape]."""

    name: str
    z: Tensor

    def squares(self, gradient: Tensor) -> dict[str, Tensor]:
        """The sums over samples, given the gradient at the copies."""
        return {self.name: gradient.square().sum(0)}


class SampleUses(TorchFunctionMode):
    """Inside, the model's forward pass is recorded; then call ``squared_gradients`` of a scalar."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(p): name for name, p in parameters.items()}
        self._uses: list[_Layer | _Copies] = []

    def squared_gradients(self, loss: Tensor) -> list[Tensor]:
        """Σ_n g_n² of each parameter, g_n the gradient of sample n's part of ``loss``."""
        gradients = torch.autograd.grad(
            loss, [use.z for use in self._uses], create_graph=True, materialize_grads=True
        )
        found: dict[str, Tensor] = {}
        for use, gradient in zip(self._uses, gradients, strict=True):
            for name, squares in use.squares(gradient).items():
                if name in found:
                    raise Refused(
                        f"{name} is used more than once, so its gradients add up before they are "
                        'squared; curvature="batch" can do that'
                    )
                found[name] = squares
        missing = sorted(set(self._names.values()) - set(found))
        if missing:
            raise Refused(f"{missing[0]} was not used in the forward pass; leave it out of params")
        return [found[name] for name in self._names.values()]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        noted = _NOTED.get(func)
        if noted is not None:
            return noted(self, func, *args, **kwargs)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.requires_grad:
            for value in (*args, *kwargs.values()):
                if id(value) in self._names and result is not value:
                    raise Refused(
                        f"{self._names[id(value)]} enters {getattr(func, '__name__', func)}, of "
                        "which the squares of single samples are not known; "
                        'curvature="batch" can do that'
                    )
        return result

    def name(self, parameter: Tensor | None) -> str | None:
        """The name of a parameter whose squares are wanted."""
        return None if parameter is None else self._names.get(id(parameter))

    def add(self, use: _Layer | _Copies) -> None:
        """Record a use."""
        self._uses.append(use)

    def copies(self, parameter: Tensor | None, samples: int) -> Tensor | None:
        """The parameter, or one copy of it for each sample if its squares are wanted."""
        name = self.name(parameter)
        if parameter is None or name is None:
            return parameter
        copies = parameter.expand(samples, *parameter.shape)
        self.add(_Copies(name, copies))
        return copies


def _linear(
    uses: SampleUses, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    z = func(x, weight, bias)
    names = uses.name(weight), uses.name(bias)
    if any(names):
        uses.add(_Layer(*names, x, z, Geometry()))
    return z


def _convolution(
    uses: SampleUses,
    func: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *rest: Any,
    **named: Any,
) -> Tensor:
    z = func(x, weight, bias, *rest, **named)
    names = uses.name(weight), uses.name(bias)
    if any(names):
        uses.add(_Layer(*names, x, z, convolution_geometry(func, weight, *rest, **named)))
    return z


def _layer_norm(
    uses: SampleUses,
    func: Any,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    shape = [len(x), *[1] * (x.dim() - 1 - len(normalized_shape)), *normalized_shape]
    return _affine(uses, func(x, normalized_shape, eps=eps), weight, bias, shape)


def _group_norm(
    uses: SampleUses,
    func: Any,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    shape = [*x.shape[:2], *[1] * (x.dim() - 2)]
    return _affine(uses, func(x, num_groups, eps=eps), weight, bias, shape)


def _batch_norm(
    uses: SampleUses,
    func: Any,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training:
        raise Refused(
            "batch norm in training mode makes samples depend on each other, so there are no "
            'gradients of single samples; curvature="batch" can do that'
        )
    plain = func(x, running_mean, running_var, momentum=momentum, eps=eps)
    return _affine(uses, plain, weight, bias, [*x.shape[:2], *[1] * (x.dim() - 2)])


def _affine(
    uses: SampleUses, x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int]
) -> Tensor:
    """weight x + bias, where ``shape`` is that of a copy for each sample of either."""
    for parameter, combine in ((weight, torch.mul), (bias, torch.add)):
        copies = uses.copies(parameter, len(x))
        if copies is not None:
            x = combine(x, copies.reshape(shape if copies is not parameter else shape[1:]))
    return x


_NOTED: Mapping[Any, Callable[..., Tensor]] = {
    F.linear: _linear,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
}
