"""Calls of a pass that one kernel makes together: layers, and the activations behind them.

A layer that our kernels serve takes with it the activation that alone reads its result, unless a
rule keeps that result; and a layer that reads the last of a run joins it. The numbers are the very
same: a layer that torch serves alone is no part of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature.recording.trace import Calls, Number, Step, filled
from lapkernels.ops import Layers, can_run, run_layers
from lapkernels.ops.convolution import our_shape
from lapkernels.ops.linear import linear_is_ours
from lapkernels.ops.tanh import tanh_is_ours

aten = torch.ops.aten
_ACTIVATIONS = {
    aten.relu.default: "relu",
    aten.tanh.default: "tanh",
}


@dataclass(eq=False, slots=True)
class Run:
    """Layers that run as one: ``steps`` are their calls, ``first`` is what the first one reads.

    ``read`` are the indices of weights and biases, ``shown`` says of each result of the calls
    whether it is made; those that only an activation read are not.
    """

    first: int
    steps: list[Step] = field(default_factory=list)
    layers: Layers = field(default_factory=Layers)
    read: list[int] = field(default_factory=list)
    shown: list[bool] = field(default_factory=list)

    def results(self, tensors: Sequence[Tensor]) -> list[Any] | None:
        """What the calls make of tensors, None in the place of what is not made.

        None if no kernel takes these tensors as things are.
        """
        x, read = tensors[self.first], [tensors[index] for index in self.read]
        if not can_run(x, read):
            return None
        made = iter(run_layers(self.layers, x, read))
        return [next(made) if shown else None for shown in self.shown]


def fused(calls: Calls, tensors: Sequence[Tensor]) -> list[Step | Run]:
    """Calls as they are to be made again, found on all ``tensors`` of a pass that made them.

    Calls that return their operand itself are left out.
    """
    steps = [step for step in calls.steps if step.returned is None]
    readers: dict[int, int] = {calls.output: 2}
    for step in calls.steps:
        for index in {*_indices((step.args, step.values, step.given))}:
            readers[index] = readers.get(index, 0) + 1
        for _, index in step.kept:
            readers[index] = readers.get(index, 0) + 1
    found: list[Step | Run] = []
    index = len(tensors) - sum(len(step.kinds) for step in steps)
    position = 0
    while position < len(steps):
        step, last = steps[position], found[-1] if found else None
        layer = _layer(step, tensors)
        if layer is None:
            found.append(step)
            position, index = position + 1, index + len(step.kinds)
            continue
        follower = steps[position + 1] if position + 1 < len(steps) else None
        kind = _behind(follower, index, tensors) if readers.get(index) == 1 else None
        run = last if isinstance(last, Run) and step.given[0].index == index - 1 else None
        if run is None:
            run = Run(step.given[0].index)
            found.append(run)
        weights, taps = layer
        run.read += weights
        run.layers.add(step.kinds[0][0], len(weights) > 1, taps, kind or "identity")
        taken = [step] if kind is None or follower is None else [step, follower]
        run.steps += taken
        run.shown += [False] * (len(taken) - 1) + [True]
        position, index = position + len(taken), index + len(taken)
    return found


def _layer(step: Step, tensors: Sequence[Tensor]) -> tuple[list[int], list[int]] | None:
    """The indices of weight and bias, and the taps, of a layer that our kernels serve."""
    op = step.function.op
    if op not in (aten.linear.default, aten.convolution.default):
        return None
    x, weight, *rest = (filled(one, tensors) for one in step.given)
    read = [one.index for one in step.given[1:3] if one is not None]
    if op is aten.linear.default:
        return (read, []) if linear_is_ours(x, weight, *rest) else None
    if our_shape(x, weight, *rest) is None:
        return None
    _, stride, padding, dilation, transposed, _, groups = rest
    return read, [*stride, *padding, *dilation, groups, int(transposed)]


def _behind(step: Step | None, index: int, tensors: Sequence[Tensor]) -> str | None:
    """The name of a call that is an activation of a tensor and can stand behind a layer."""
    name = None if step is None else _ACTIVATIONS.get(step.function.op)
    if step is None or name is None or step.given[0].index != index:
        return None
    if name == "tanh" and not tanh_is_ours(tensors[index]):
        return None
    return name


def _indices(value: Any) -> Iterator[int]:
    """The tensors among arguments."""
    if isinstance(value, Number):
        yield value.index
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _indices(one)
