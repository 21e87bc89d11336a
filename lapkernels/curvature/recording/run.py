"""Running a model on a batch under a recorder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.batches import tensors_in
from lapkernels.curvature.data.contents import Contents
from lapkernels.curvature.errors import Refused, SamplesLost
from lapkernels.curvature.recording.recorder import Recorder
from lapkernels.curvature.recording.run_model import Runner, copied, plain_ops
from lapkernels.curvature.recording.shortcuts import Shortcuts, Unseen
from lapkernels.curvature.recording.trace import Node, Trace, Value
from lapkernels.rules import Samples, follow


@dataclass
class Subject:
    """A model, its chosen parameters, and what is looked up in it once.

    It is ``watched`` op by op if shortcuts have missed an op before.
    """

    contents: Contents
    chosen: dict[str, nn.Parameter]
    parameters: dict[str, nn.Parameter]
    runner: Runner
    watched: bool = False

    @classmethod
    def of(cls, contents: Contents, chosen: dict[str, nn.Parameter]) -> Subject:
        """From the contents of a model."""
        return cls(contents, chosen, contents.parameters, Runner(contents))

    @property
    def model(self) -> nn.Module:
        """The user's model."""
        return self.contents.model


def record(
    subject: Subject,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    select: Callable[[Any], Any],
    *,
    edges: bool = False,
    keep_graph: bool = False,
) -> Trace:
    """Run the model on a batch and record it.

    ``inputs`` are positional and keyword arguments; all their tensors hold samples in dimension 0.
    With ``keep_graph`` autograd's graph is kept, with ``edges`` also its edge to every op that uses
    a weight.
    """
    try:
        return _record(subject, inputs, select, False, edges, keep_graph)
    except SamplesLost:
        return _record(subject, inputs, select, True, edges, keep_graph)


def _record(
    subject: Subject,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    select: Callable[[Any], Any],
    place_fresh: bool,
    edges: bool,
    keep_graph: bool,
) -> Trace:
    # Edges are known op by op only.
    if not subject.watched and not edges:
        try:
            return _trace(subject, inputs, select, place_fresh, edges, keep_graph)
        except Unseen:
            subject.watched = True
    return _trace(subject, inputs, select, place_fresh, edges, keep_graph)


def _trace(
    subject: Subject,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    select: Callable[[Any], Any],
    place_fresh: bool,
    edges: bool,
    keep_graph: bool,
) -> Trace:
    start = Start.of(subject, inputs)
    count = start.tensors[0].shape[0]
    recorder = Recorder(count, subject.runner.paths, place_fresh, edges)
    where = Samples(count)
    for tensor in start.tensors:
        samples = follow(1, tensor.shape) if count == 1 else where
        recorder.define(tensor, Value(tensor.shape, tensor.dtype, samples, False))
    parameters: dict[str, Value] = {}
    for name, leaf in start.leaves.items():
        chosen = name in subject.chosen
        value = Value(leaf.shape, leaf.dtype, None, chosen, name if chosen else None)
        recorder.define(leaf, value)
        if chosen:
            parameters[name] = value
    by_op = subject.watched or edges
    watch = recorder if by_op else Shortcuts(recorder, start.given(subject))
    output = run(subject, start, select, watch)
    calls = None
    with torch.enable_grad():
        if isinstance(watch, Shortcuts):
            watch.check(output)
            calls = None if place_fresh else watch.calls(output)
        value = _output(recorder, output)
    recorder.notice_hooks()
    recorder.settle()
    # Past an op that only autograd knows, the ops do not show what is reached.
    nodes = recorder.nodes if recorder.opaque else _reached(recorder.nodes, value)
    return Trace(
        count,
        parameters,
        nodes,
        value,
        output.detach(),
        recorder.entries,
        output if edges or keep_graph else None,
        {name: start.leaves[name] for name in subject.chosen},
        recorder.opaque,
        recorder.hidden,
        None if recorder.opaque or recorder.hidden else calls,
    )


def unrecorded(
    subject: Subject,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    select: Callable[[Any], Any],
    reason: str,
) -> Trace:
    """A pass of one sample with autograd's graph alone, and the reason for that."""
    start = Start.of(subject, inputs)
    output = run(subject, start, select, nullcontext())
    value = Value(output.shape, output.dtype, follow(1, output.shape), output.requires_grad)
    named = {
        name: Value(leaf.shape, leaf.dtype, None, True, name)
        for name, leaf in start.leaves.items()
        if name in subject.chosen
    }
    leaves = {name: start.leaves[name] for name in named}
    entries = sum(leaf.numel() for leaf in leaves.values())
    return Trace(
        1, named, [], value, output.detach(), entries, output, leaves, [reason], hidden=True
    )


@dataclass(frozen=True)
class Start:
    """The tensors a pass starts from: copies of the inputs, and a leaf for each parameter."""

    args: Any
    kwargs: Any
    tensors: list[Tensor]
    leaves: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        subject: Subject,
        inputs: tuple[tuple[Any, ...], dict[str, Any]],
        keep_graph: bool = True,
    ) -> Start:
        """Start of a batch. With ``keep_graph`` leaves of chosen parameters require a gradient."""
        args, kwargs = copied(inputs[0]), copied(inputs[1])
        leaves: dict[str, Tensor] = {}
        for name, parameter in subject.parameters.items():
            leaves[name] = parameter.detach()
            if keep_graph and name in subject.chosen:
                leaves[name].requires_grad_()
        return cls(args, kwargs, list(tensors_in((args, kwargs))), leaves)

    def given(self, subject: Subject) -> list[Tensor]:
        """Every tensor that a pass may read: inputs, parameters and buffers."""
        return [*self.tensors, *self.leaves.values(), *subject.contents.buffers]


def run(
    subject: Subject,
    start: Start,
    select: Callable[[Any], Any],
    watch: AbstractContextManager[Any],
) -> Tensor:
    """The model's output, ``select``ed from what it returns, run under ``mode``."""
    with torch.enable_grad(), plain_ops(subject.contents), watch:
        return select(subject.runner(start.args, start.kwargs, start.leaves))


def _output(recorder: Recorder, output: Tensor) -> Value:
    """The value of the output, which must hold the samples in dimension 0."""
    value = recorder.operand(output)
    if value.lost is not None:
        raise value.lost
    if value.samples is None and value.active:
        if recorder.count > 1:
            raise SamplesLost("the model's output does not depend on the sample")
        return recorder.lifted(output, value)
    if recorder.count > 1 and value.samples not in (None, Samples(recorder.count)):
        raise Refused("the model's output holds its samples in another dimension than 0")
    return value


def _reached(nodes: list[Node], output: Value) -> list[Node]:
    """The nodes that the output depends on, in order."""
    needed = {id(output)}
    kept = []
    for node in reversed(nodes):
        if any(id(value) in needed for value in node.outputs):
            needed.update(id(value) for value in node.inputs if value.active)
            kept.append(node)
    return kept[::-1]
