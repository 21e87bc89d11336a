"""Recording a pass of a model on a batch: its trace, from a recorder that watches it run."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from lapkernels.curvature.data.batches import Batch
from lapkernels.curvature.errors import Refused, SamplesLost
from lapkernels.curvature.recording.recorder import Recorder
from lapkernels.curvature.recording.run_model import Start, Subject, run
from lapkernels.curvature.recording.shortcuts import Shortcuts, Unseen
from lapkernels.curvature.recording.trace import Node, Trace, Value
from lapkernels.ops.base.precision import widened
from lapkernels.rules import Samples, follow


def record(
    subject: Subject,
    batch: Batch,
    *,
    edges: bool = False,
    keep_graph: bool = False,
) -> Trace:
    """Run the model on a batch and record it.

    With ``keep_graph`` autograd's graph is kept, with ``edges`` also its edge to every op that uses
    a weight.
    """
    # Of recurrent layers that are recorded step by step, first states are made in the model.
    placed = subject.contents.recurrent and (edges or subject.watched)
    try:
        return _record(subject, batch, placed, edges, keep_graph)
    except SamplesLost:
        return _record(subject, batch, not placed, edges, keep_graph)


def _record(
    subject: Subject,
    batch: Batch,
    place_fresh: bool,
    edges: bool,
    keep_graph: bool,
) -> Trace:
    # Edges are known op by op only.
    if not subject.watched and not edges:
        try:
            return _trace(subject, batch, place_fresh, edges, keep_graph)
        except Unseen:
            subject.watched = True
    return _trace(subject, batch, place_fresh, edges, keep_graph)


def _trace(
    subject: Subject,
    batch: Batch,
    place_fresh: bool,
    edges: bool,
    keep_graph: bool,
) -> Trace:
    start = Start.of(subject, batch)
    count = start.count
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
    output = run(subject, start, watch)
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
        widened(output.detach()),
        recorder.entries,
        output if edges or keep_graph else None,
        {name: start.leaves[name] for name in subject.chosen},
        recorder.opaque,
        recorder.hidden,
        recorder.pooled,
        None if recorder.opaque or recorder.hidden else calls,
    )


def unrecorded(
    subject: Subject,
    batch: Batch,
    reason: str,
) -> Trace:
    """A pass of one sample with autograd's graph alone, and the reason for that."""
    start = Start.of(subject, batch)
    output = run(subject, start, nullcontext())
    value = Value(output.shape, output.dtype, follow(1, output.shape), output.requires_grad)
    named = {
        name: Value(leaf.shape, leaf.dtype, None, True, name)
        for name, leaf in start.leaves.items()
        if name in subject.chosen
    }
    leaves = {name: start.leaves[name] for name in named}
    entries = sum(leaf.numel() for leaf in leaves.values())
    prediction = widened(output.detach())
    return Trace(1, named, [], value, prediction, entries, output, leaves, [reason], hidden=True)


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
