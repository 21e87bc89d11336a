r"""A diagonal M passed through a chain of layers with activations between them, in one call.

From the last layer to the first, with :math:`X_n` a layer's unfolded input, made from z,

.. math:: D[o, ik] = \sum_n \sum_t m_n[o, t] \, X_n[ik, t]^2, \qquad
          m \leftarrow \varphi'(z)^2 \, (W \circ W)^T m

and, together with it, a gradient: :math:`\sum_n \sum_t g_n[o, t] \, X_n[ik, t]` and
:math:`g \leftarrow \varphi'(z) \, W^T g`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from lapkernels.ops.base.geometry import Geometry, once_per_size
from lapkernels.ops.base.registration import kernel_for, register_list_update
from lapkernels.ops.conv_input import CONV_INPUT
from lapkernels.ops.conv_weight import CONV_WEIGHT
from lapkernels.ops.squared_derivative import ACTIVATIONS, derivative


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """A Linear layer on rows or a convolution, with its ``weight`` and input ``x`` [N, I, *in].

    The input is the result of an ``activation``, whose derivative is a function of ``z``.
    """

    geometry: Geometry
    weight: Tensor
    x: Tensor
    wants_weight: bool = True
    wants_bias: bool = True
    z: Tensor | None = None
    activation: str = "identity"
    slope: float = 0.0


@dataclass(slots=True)
class ChainSums:
    """The shares of each layer's weight and bias, and the result at the chain's input."""

    weights: list[Tensor | None] = field(default_factory=list)
    biases: list[Tensor | None] = field(default_factory=list)
    input: Tensor | None = None


def can_chain(like: Tensor) -> bool:
    """Whether a kernel passes diagonals like this one through chains."""
    return kernel_for("layer_chain", [like]) is not None


def layer_chain(
    layers: Sequence[ChainLayer], m: Tensor, g: Tensor | None = None, *, wants_input: bool = True
) -> tuple[ChainSums, ChainSums | None]:
    """D of all ``layers``, the last first, from ``m`` at the result of the last, [N, O, *out].

    With ``g`` of that shape also the gradients. The result is at the operand ``z`` of the first
    layer's activation.
    """
    squares, gradient = ChainSums(), None if g is None else ChainSums()
    streams = [squares] if gradient is None else [squares, gradient]
    made: list[Tensor] = []
    read: list[Tensor] = []
    plan: list[int] = []
    above, left = m, len(layers)
    for layer in layers:
        left -= 1
        wants_weight, wants_bias = layer.wants_weight, layer.wants_bias
        goes_on = wants_input or left > 0
        plan += _numbers(layer.geometry, layer.activation, wants_weight, wants_bias, goes_on)
        read += (layer.weight, layer.x) if layer.z is None else (layer.weight, layer.x, layer.z)
        for sums in streams:
            weight = m.new_empty(layer.weight.shape) if wants_weight else None
            bias = m.new_empty(above.shape[1]) if wants_bias else None
            sums.weights.append(weight)
            sums.biases.append(bias)
            made += [one for one in (weight, bias) if one is not None]
        above = layer.x
    if wants_input:
        for sums in streams:
            sums.input = m.new_empty(above.shape)
            made.append(sums.input)
    like = [m, *read] if g is None else [m, g, *read]
    LAYER_CHAIN(made, m, g, read, plan, [layer.slope for layer in layers], like=like)
    return squares, gradient


@once_per_size
def _numbers(geometry: Geometry, activation: str, *wants: bool) -> tuple[int, ...]:
    """A layer's numbers in the op's plan, with which of weight, bias and input are wanted."""
    dims = len(geometry.kernel_size)
    known = (ACTIVATIONS.index(activation), *map(int, wants), dims)
    if not dims:
        return known
    stride, padding, dilation, groups = geometry.arguments
    return (*known, *stride, *padding, *dilation, groups, int(geometry.transposed))


def _reference(
    made: list[Tensor],
    m: Tensor,
    g: Tensor | None,
    read: list[Tensor],
    plan: list[int],
    slopes: list[float],
) -> None:
    results, operands, numbers = iter(made), iter(read), iter(plan)
    streams = [(m, 2)] if g is None else [(m, 2), (g, 1)]
    for slope in slopes:
        activation = ACTIVATIONS[next(numbers)]
        wants_weight, wants_bias, wants_input, dims = (next(numbers) for _ in range(4))
        weight, x = next(operands), next(operands)
        z = next(operands) if activation != "identity" else None
        taps = _taps(numbers, dims) if dims else None
        for k, (s, power) in enumerate(streams):
            if wants_weight:
                next(results).copy_(_weight(s, x.pow(power), weight, taps))
            if wants_bias:
                next(results).copy_(s.transpose(0, 1).flatten(1).sum(1))
            if wants_input:
                value = _input(s, x, weight.pow(power), taps)
                factor = 1 if z is None else derivative(z, activation, slope).pow(power)
                streams[k] = (value * factor, power)
    for (s, _), out in zip(streams, results, strict=False):
        out.copy_(s)


Taps = tuple[list[int], list[int], list[int], int, bool]


def _taps(numbers: Iterator[int], dims: int) -> Taps:
    stride, padding, dilation = ([next(numbers) for _ in range(dims)] for _ in range(3))
    return stride, padding, dilation, next(numbers), bool(next(numbers))


def _weight(s: Tensor, x: Tensor, weight: Tensor, taps: Taps | None) -> Tensor:
    if taps is None:
        return s.mT @ x
    *rest, transposed = taps
    pair = (x, s) if transposed else (s, x)
    kernel = list(weight.shape[2:])
    return CONV_WEIGHT.reference(*(one.unsqueeze(0) for one in pair), kernel, *rest)


def _input(s: Tensor, x: Tensor, weight: Tensor, taps: Taps | None) -> Tensor:
    if taps is None:
        return s @ weight
    return CONV_INPUT.reference(s, weight, list(x.shape[2:]), *taps)


LAYER_CHAIN = register_list_update(
    "layer_chain",
    "Tensor(a!)[] made, Tensor m, Tensor? g, Tensor[] read, int[] plan, float[] slopes",
    reference=_reference,
)
