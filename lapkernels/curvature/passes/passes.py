"""One batch after the other: record the forward pass, then go back with columns or a diagonal."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.autograd import autograd_columns
from lapkernels.curvature.backward.bottleneck import pull_compressed
from lapkernels.curvature.backward.budget import column_chunks, default_budget
from lapkernels.curvature.backward.columns import Collector, pull_columns
from lapkernels.curvature.data.batches import Batch, Output, batches_of, selector
from lapkernels.curvature.data.contents import (
    Contents,
    Parameters,
    check_mode,
    parameters_of,
    plain,
)
from lapkernels.curvature.data.freed_memory import keep_freed_memory
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.errors import Refused, SamplesLost, check_choice
from lapkernels.curvature.passes.self_check import close, verdict
from lapkernels.curvature.recording.graph import Graph
from lapkernels.curvature.recording.replay import KeepsGraph, recorded
from lapkernels.curvature.recording.run import Subject, record, unrecorded
from lapkernels.curvature.recording.run_model import call_model
from lapkernels.likelihoods import Columns

T = TypeVar("T")
Route = Literal["auto", "rules", "autograd"]


@dataclass
class Pass:
    """A recorded batch: its prediction, its labels, and the way back."""

    graph: Graph
    prediction: Tensor
    target: Any
    budget: int | None
    by_autograd: bool
    # How it compared with autograd, for ``explain``.
    check: str = ""

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.graph.trace.count

    @property
    def allowed(self) -> int:
        """Bytes that columns may take on their way back."""
        if self.budget is not None:
            return self.budget
        return default_budget(self.graph, self.prediction.element_size())

    def chunks(self, count: int) -> Iterator[tuple[int, int]]:
        """Ranges of columns that fit the memory budget on their way back."""
        size = self.prediction.element_size()
        return column_chunks(self.graph, count, self.budget, size)

    def pull(self, count: int, chunk: Callable[[int, int], Tensor], collector: Collector) -> None:
        """Carry ``count`` columns, made by ``chunk(first, last)``, back to the parameters."""
        carry = autograd_columns if self.by_autograd else pull_columns
        for first, last in self.chunks(count):
            carry(self.graph, chunk(first, last), collector)

    def pull_quadratic(self, columns: Columns, collector: Collector) -> None:
        """The same for a sum of something quadratic over columns: as windows, and compressed."""
        if self.by_autograd:
            self.pull(columns.count, columns.chunk, collector)
        else:
            pull_compressed(self.graph, columns, collector, self.budget)


def passes(
    model: nn.Module,
    data: Any,
    params: Parameters = None,
    output: Output = None,
    memory_budget: int | None = None,
    progress: bool = False,
    route: Route = "auto",
    *,
    keep_graph: KeepsGraph = False,
    parts: int = 1,
    split: Callable[[Pass], int] | None = None,
) -> tuple[dict[str, nn.Parameter], Iterator[Pass]]:
    """The chosen parameters, and a pass for every batch of the data.

    With ``keep_graph`` every pass keeps autograd's graph of its prediction; a predicate picks
    repeated passes, and new ones keep it. Large batches go in so many ``parts``, each a pass of its
    own. ``split`` says of a pass into how many it should be split so that what it needs at a time
    fits into the memory that the whole was allowed.
    """
    check_choice("route", route, Route)
    if memory_budget is not None and memory_budget < 1:
        raise ValueError(f"memory_budget={memory_budget} must be a positive number of bytes")
    keep_freed_memory()
    contents = Contents.of(plain(model))
    chosen = parameters_of(contents, params)
    check_mode(contents)
    subject = Subject.of(contents, chosen)

    def run() -> Iterator[Pass]:
        batches = batches_of(data)
        for batch in with_progress(batches, data) if progress else batches:
            for part in _parts(subject, batch, output, parts):
                yield from _passes(subject, part, output, memory_budget, route, keep_graph, split)

    return chosen, run()


def _parts(subject: Subject, batch: Batch, output: Output, count: int) -> Iterator[Batch]:
    """A batch in equal parts if it takes more than four megabytes for each.

    A part has two samples at least: one alone would not show that samples depend on each other.
    """
    count = max(1, min(count, batch.count // 2))
    if count > 1:
        two, select = batch.part(0, 2), selector(output, 2)
        try:
            with random_state_kept(subject.model, two.args, two.kwargs):
                trace = record(subject, (two.args, two.kwargs), select)
        except SamplesLost:
            count = 1
        else:
            size = trace.entries * trace.prediction.element_size() * batch.count // 2
            count = min(count, max(1, size >> 22))
    if count == 1:
        # As it is: a part would have as many labels as samples, whatever was given.
        yield batch
        return
    yield from batch.parts(count)


def _passes(
    subject: Subject,
    batch: Batch,
    output: Output,
    budget: int | None,
    route: Route,
    keep_graph: KeepsGraph,
    split: Callable[[Pass], int] | None,
) -> Iterator[Pass]:
    """One pass for the batch, or for each of its parts or samples if that is what it takes."""
    try:
        whole = _pass(subject, batch, output, budget, route, keep_graph)
    except SamplesLost as lost:
        if route == "rules":
            raise
        # Whatever the model itself raises is the user's to see.
        together = _plain_output(subject, batch, output)
        if batch.count > 1:
            warnings.warn(
                f"{lost}. Samples run one at a time, which is slow.", RuntimeWarning, stacklevel=5
            )
        yield from _one_by_one(subject, batch, output, budget, route, keep_graph, together, lost)
    else:
        count = 1 if split is None else min(split(whole), batch.count)
        if count < 2:
            yield whole
            return
        allowed = whole.allowed
        del whole  # and its activations
        for part in batch.parts(count):
            yield _pass(subject, part, output, allowed, route, keep_graph)


def _plain_output(subject: Subject, batch: Batch, output: Output) -> Tensor:
    """What the model returns; it may want gradients, to register a hook on one."""
    with random_state_kept(subject.model, batch.args, batch.kwargs), torch.enable_grad():
        result = call_model(subject.model, batch.args, batch.kwargs)
        return selector(output, batch.count)(result).detach()


def _one_by_one(
    subject: Subject,
    batch: Batch,
    output: Output,
    budget: int | None,
    route: Route,
    keep_graph: KeepsGraph,
    together: Tensor,
    lost: SamplesLost,
) -> Iterator[Pass]:
    """A pass for each sample, the last resort by autograd alone, which has no need to record."""
    for n in range(batch.count):
        sample = batch.sample(n)
        try:
            if batch.count == 1:
                raise lost
            one = _pass(subject, sample, output, budget, route, keep_graph)
        except SamplesLost as error:
            inputs = (sample.args, sample.kwargs)
            with random_state_kept(subject.model, inputs):
                graph = Graph.of(unrecorded(subject, inputs, selector(output, 1), str(error)))
            one = _checked(
                Pass(graph, graph.trace.prediction, sample.target, budget, True),
                subject,
                sample,
                output,
            )
            if isinstance(one, str):
                raise Refused(f"{one}, however it is found: {lost}") from error
        if not close(one.prediction[0], together[n]):
            raise Refused(
                f"the model's output for sample {n} changes with the other samples of the batch; "
                "curvature is a sum over independent samples"
            )
        yield one


def _pass(
    subject: Subject,
    batch: Batch,
    output: Output,
    budget: int | None,
    route: Route,
    keep_graph: KeepsGraph,
) -> Pass:
    """A recorded pass that goes back by rules, or else by autograd.

    Raises ``SamplesLost`` if neither can be done for all samples at once.
    """
    try:
        if route != "autograd":
            found = _by_rules(subject, batch, output, budget, keep_graph)
            if isinstance(found, Pass):
                return found
            if route == "rules":
                raise Refused(f"{found}: only autograd knows its gradient; route='auto'")
        else:
            found = None
        return _by_autograd(subject, batch, output, budget, keep_graph, found)
    except Refused:
        raise
    except Exception as error:
        if route == "rules":
            raise
        raise SamplesLost(f"recording raises {type(error).__name__}: {error}") from error


def _by_rules(
    subject: Subject, batch: Batch, output: Output, budget: int | None, keep_graph: KeepsGraph
) -> Pass | str:
    """A pass that goes back by rules, or why there is none."""
    inputs, select = (batch.args, batch.kwargs), selector(output, batch.count)
    graph = recorded(subject, inputs, select, keep_graph=keep_graph, is_output=output is None)
    if graph.trace.opaque:
        return graph.trace.opaque[0]
    return _checked(
        Pass(graph, graph.trace.prediction, batch.target, budget, False), subject, batch, output
    )


def _by_autograd(
    subject: Subject,
    batch: Batch,
    output: Output,
    budget: int | None,
    keep_graph: KeepsGraph,
    reason: str | None,
) -> Pass:
    """A pass that goes back by autograd, to each op that uses a weight."""
    inputs, select = (batch.args, batch.kwargs), selector(output, batch.count)
    with random_state_kept(subject.model, inputs):
        trace = record(subject, inputs, select, edges=True, keep_graph=bool(keep_graph))
    if reason is not None and not trace.opaque:
        trace.opaque.append(reason)
    if trace.opaque and trace.hidden and trace.count > 1:
        raise SamplesLost(f"{trace.opaque[0]} that reads parameters")
    graph = Graph.of(trace)
    found = _checked(
        Pass(graph, trace.prediction, batch.target, budget, True), subject, batch, output
    )
    if isinstance(found, str):
        raise SamplesLost(found)
    return found


def _checked(one: Pass, subject: Subject, batch: Batch, output: Output) -> Pass | str:
    """The pass, or what is wrong with it."""
    if not one.graph.trace.output.active:
        raise Refused("the model's output does not depend on the chosen parameters")
    found = verdict(subject, batch, output, one.graph, one.by_autograd)
    one.check = found.note
    return one if found.problem is None else found.problem


def with_progress(batches: Iterator[T], data: Any) -> Iterator[T]:
    """A tqdm bar over the batches."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    total = len(data) if hasattr(data, "__len__") and not isinstance(data, Tensor) else None
    yield from tqdm(batches, total=total, unit="batch")
