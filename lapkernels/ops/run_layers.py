r"""Layers one after the other, each with the activation behind it, in one call.

.. math:: x \leftarrow \varphi(W x + b)

for Linear layers on few rows and convolutions of few channels. What torch makes in two calls a
layer is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels.ops._library import kernel_for, register_list_update
from lapkernels.ops.squared_derivative import ACTIVATIONS

# What may stand behind a layer.
BEHIND: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda z: z,
    "relu": torch.relu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True, slots=True)
class Layers:
    """What is known of layers without their tensors: settings, and the shapes of their results."""

    plan: list[int] = field(default_factory=list)
    shapes: list[Sequence[int]] = field(default_factory=list)

    def add(
        self,
        shape: Sequence[int],
        has_bias: bool,
        taps: Sequence[int] = (),
        activation: str = "identity",
    ) -> None:
        """Add a layer behind the others.

        ``taps`` of a convolution are stride, padding and dilation, number by number, groups and
        whether it is transposed.
        """
        known = (ACTIVATIONS.index(activation), int(has_bias), len(taps) // 3)
        self.plan.extend((*known, *map(int, taps)))
        self.shapes.append(shape)


def can_run(x: Tensor, read: Sequence[Tensor]) -> bool:
    """Whether a kernel runs layers on tensors like these."""
    return kernel_for("run_layers", [x, *read]) is not None


def run_layers(layers: Layers, x: Tensor, read: Sequence[Tensor]) -> list[Tensor]:
    """The results of all ``layers``, the first on ``x``.

    ``read`` has the weight of each and its bias, if it has one.
    """
    made = [x.new_empty(shape) for shape in layers.shapes]
    RUN_LAYERS(made, x, read, layers.plan, like=[x, *read])
    return made


def _reference(made: list[Tensor], x: Tensor, read: list[Tensor], plan: list[int]) -> None:
    operands, numbers = iter(read), iter(plan)
    for out in made:
        activation, has_bias, dims = ACTIVATIONS[next(numbers)], next(numbers), next(numbers)
        weight = next(operands)
        bias = next(operands) if has_bias else None
        x = _layer(x, weight, bias, numbers, dims, out.shape[2:])
        x = out.copy_(BEHIND[activation](x))


def _layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    numbers: Iterator[int],
    dims: int,
    size: Sequence[int],
) -> Tensor:
    if dims == 0:
        return F.linear(x, weight, bias)
    stride, padding, dilation = ([next(numbers) for _ in range(dims)] for _ in range(3))
    groups, transposed = next(numbers), bool(next(numbers))
    extra = [0] * dims
    if transposed:
        lengths = zip(size, x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
        extra = [o - ((i - 1) * s - 2 * p + d * (k - 1) + 1) for o, i, k, s, p, d in lengths]
    return torch.convolution(x, weight, bias, stride, padding, dilation, transposed, extra, groups)


RUN_LAYERS = register_list_update(
    "run_layers",
    "Tensor(a!)[] made, Tensor x, Tensor[] read, int[] plan",
    reference=_reference,
)
