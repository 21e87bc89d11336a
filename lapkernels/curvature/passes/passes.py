"""Recording each batch's forward pass, and pulling columns or a diagonal back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.carry import Plan, autograd_columns, carry
from lapkernels.curvature.backward.columns import Collector, pull_columns
from lapkernels.curvature.backward.cost import Load, Local
from lapkernels.curvature.backward.planner import (
    columns_at_once,
    plan_autograd,
    plan_columns,
    plan_mixed,
)
from lapkernels.curvature.data.batches import (
    Batch,
    Output,
    batches_of,
    check_choice,
    check_devices,
    selector,
)
from lapkernels.curvature.data.contents import (
    Contents,
    Parameters,
    check_mode,
    parameters_of,
    plain,
)
from lapkernels.curvature.data.freed_memory import keep_freed_memory
from lapkernels.curvature.data.processes import tell_problem
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.errors import Refused, SamplesLost
from lapkernels.curvature.passes.self_check import close, program_name, verdict
from lapkernels.curvature.recording.graph import Graph
from lapkernels.curvature.recording.replay import KeepsGraph, recorded
from lapkernels.curvature.recording.run import record, unrecorded
from lapkernels.curvature.recording.run_model import Subject, call_model
from lapkernels.curvature.recording.targets import with_targets
from lapkernels.likelihoods import Columns, Likelihood, LocalColumns

T = TypeVar("T")
Route = Literal["auto", "rules", "autograd"]


@dataclass(frozen=True)
class Pass:
    """A recorded batch: its prediction, its labels, and its backward pass.

    A collector may keep columns' contributions until they have reached every parameter: ``kept``
    is then the numbers it keeps for each column.
    """

    graph: Graph
    prediction: Tensor
    batch: Batch
    budget: int | None
    by_autograd: bool
    # The outcome of the check against autograd, for ``explain``.
    check: str = ""
    kept: int | None = None

    @property
    def target(self) -> Any:
        """The labels."""
        return self.batch.target

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.graph.trace.count

    @property
    def allowed(self) -> int:
        """Bytes of columns in the backward pass.

        By default half as much as the activations, and at least 16 MiB: ops need the other half.
        """
        if self.budget is not None:
            return self.budget
        return max(self.graph.trace.entries * self.prediction.element_size() // 2, 1 << 24)

    @property
    def columns_in_budget(self) -> int:
        """Number of columns that fit the budget, at least one."""
        return columns_at_once(self.graph, self.allowed, self.kept or 0)

    def keeping(self, entries: int = 0) -> Pass:
        """The same pass for a collector that keeps ``kept`` numbers for each column."""
        return replace(self, kept=entries)

    def plan(
        self,
        count: int,
        *,
        shared: bool = False,
        local: Local | None = None,
        compress: bool = False,
    ) -> Plan:
        """The plan for the columns of a ``Load``."""
        if self.by_autograd:
            return plan_autograd(self.graph, count)
        load = Load(count, self.allowed, shared, local, compress, self.kept or 0)
        return plan_columns(self.graph, load)

    def plan_quadratic(self, columns: Columns, local: LocalColumns | None) -> Plan:
        """The same for sums that are quadratic in the columns, which may be windows or compressed.

        Compressed columns differ between parameters, so a collector that keeps columns gets plain
        ones.
        """
        if self.kept is not None:
            return self.plan(columns.count, shared=columns.shared)
        return self.plan(
            columns.count, shared=columns.shared, local=_described(local), compress=True
        )

    def mixed_start(self, likelihood: Likelihood, threshold: float) -> Columns | Tensor:
        """M at the output: columns if it is narrow and its entries depend on each other."""
        f, y = self.prediction, self.target
        wide = self.graph.trace.output.features > threshold
        if wide or likelihood.independent:
            return likelihood.diagonal(f, y)
        return likelihood.columns(f, y)

    def plan_mixed(self, start: Columns | Tensor, threshold: float) -> Plan:
        """The plan for M, which starts as columns or as a diagonal."""
        if isinstance(start, Tensor):
            return plan_mixed(self.graph, threshold, self.allowed, None, None)
        local = _described(start.local())
        return plan_mixed(self.graph, threshold, self.allowed, start.count, local)

    def pull(self, count: int, chunk: Callable[[int, int], Tensor], collector: Collector) -> None:
        """Pull ``count`` columns, made by ``chunk(first, last)``, back to the parameters."""
        finish = self.kept is not None
        carry(self.graph, self.plan(count).stages, chunk, None, collector, finish=finish)

    def pull_quadratic(self, columns: Columns, collector: Collector) -> None:
        """Pull columns back to a collector of sums that are quadratic in them."""
        local = None if self.by_autograd or self.kept is not None else columns.local()
        stages = self.plan_quadratic(columns, local).stages
        finish = self.kept is not None
        root = None if local is None else local.root
        carry(self.graph, stages, columns.chunk, root, collector, finish=finish)

    def pull_together(self, s: Tensor, collector: Collector) -> None:
        """Pull columns [V, *output] back; a collector gets all V at once at a parameter."""
        (autograd_columns if self.by_autograd else pull_columns)(self.graph, s, collector)


def _described(local: LocalColumns | None) -> Local | None:
    return None if local is None else Local(len(local.root), local.dim)


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
    by_op: bool = False,
) -> tuple[dict[str, nn.Parameter], Iterator[Pass]]:
    """The chosen parameters, and a pass for every batch of the data.

    With ``keep_graph`` every pass keeps autograd's graph of its prediction; a predicate picks
    repeated passes, and new ones keep it. Large batches go in ``parts``, each a pass of its own.
    ``split`` says into how many passes a pass is to be split to fit the memory budget. With
    ``by_op`` recurrent layers are recorded step by step.
    """
    check_choice("route", route, Route)
    if memory_budget is not None and memory_budget < 1:
        raise ValueError(f"memory_budget={memory_budget} must be a positive number of bytes")
    keep_freed_memory()
    contents = Contents.of(plain(model))
    chosen = parameters_of(contents, params, half=True)
    check_mode(contents, autocast=True)
    subject = Subject.of(contents, chosen, output)
    subject.watched = by_op and contents.recurrent
    recorder = _Recorder(subject, memory_budget, route, keep_graph)

    def run() -> Iterator[Pass]:
        batches = with_targets(model, batches_of(data))
        for batch in with_progress(batches, data) if progress else batches:
            for part in recorder.parts(batch, parts):
                yield from recorder.passes(part, split)

    return chosen, run()


@dataclass(frozen=True)
class _Recorder:
    """Passes of one model, each recorded by rules, or else by autograd."""

    subject: Subject
    budget: int | None
    route: Route
    keep_graph: KeepsGraph

    def parts(self, batch: Batch, count: int) -> Iterator[Batch]:
        """A batch in equal parts of more than four megabytes of activations each.

        A part has at least two samples: one alone would not show that samples depend on each other.
        """
        count = max(1, min(count, batch.count // 2))
        if count > 1:
            two = batch.part(0, 2)
            try:
                with random_state_kept(self.subject.model, two.args, two.kwargs):
                    trace = record(self.subject, two)
            except SamplesLost:
                count = 1
            else:
                size = trace.entries * trace.prediction.element_size() * batch.count // 2
                count = min(count, max(1, size >> 22))
        # A whole batch is not split: the parts would hide labels of a wrong number.
        yield from [batch] if count == 1 else batch.parts(count)

    def passes(self, batch: Batch, split: Callable[[Pass], int] | None) -> Iterator[Pass]:
        """One pass for the batch, or for each of its parts or samples if needed."""
        try:
            whole = self.whole(batch)
        except SamplesLost as lost:
            if self.route == "rules":
                raise
            # Errors of the model itself are passed on.
            together = self.plain_output(batch)
            if batch.count > 1:
                words = f"{lost}. Samples run one at a time, which is slow."
                warnings.warn(words, RuntimeWarning, stacklevel=8)
            for n in range(batch.count):
                yield self.sample(batch, n, together[n], lost)
            return
        count = 1 if split is None else min(split(whole), batch.count)
        if count < 2:
            yield whole
            return
        budgeted = replace(self, budget=whole.allowed)
        del whole  # and its activations
        for part in batch.parts(count):
            # A single sample may need autograd where several do not.
            yield from budgeted.passes(part, None)

    def plain_output(self, batch: Batch) -> Tensor:
        """The model's outputs, with gradients enabled, as it may register a hook on one."""
        subject = self.subject
        with random_state_kept(subject.model, batch.args, batch.kwargs), torch.enable_grad():
            try:
                result = call_model(subject.model, batch.args, batch.kwargs)
            except RuntimeError as error:
                check_devices(subject.model, batch, error)
                raise
            return selector(subject.output, batch.count)(result).detach()

    def sample(self, batch: Batch, n: int, together: Tensor, lost: SamplesLost) -> Pass:
        """A pass of sample n by autograd alone, the last resort."""
        sample = batch.part(n, 1)
        try:
            if batch.count == 1:
                raise lost
            one = self.whole(sample)
        except SamplesLost as error:
            with random_state_kept(self.subject.model, sample.args, sample.kwargs):
                trace = unrecorded(self.subject, sample, str(error))
            one = self.checked(Graph.of(trace), sample, by_autograd=True)
            if isinstance(one, str):
                raise Refused(f"{one}, however it is found: {lost}") from error
        if not close(one.prediction[0], together):
            raise Refused(
                f"the model's output for sample {n} changes with the other samples of the batch; "
                "curvature is a sum over independent samples"
            )
        return replace(one, check=f"one sample at a time: {lost}\n{one.check}")

    def whole(self, batch: Batch) -> Pass:
        """A recorded pass by rules, or else by autograd.

        Raises ``SamplesLost`` if neither can be done for all samples at once.
        """
        try:
            if self.route == "autograd":
                return self.by_autograd(batch, None)
            found = self.by_rules(batch)
            if isinstance(found, Pass):
                return found
            if self.route == "rules":
                raise Refused(f"{found}: only autograd knows its gradient; route='auto'")
            return self.by_autograd(batch, found)
        except Refused:
            raise
        except Exception as error:
            if self.route == "rules":
                raise
            raise SamplesLost(f"recording raises {type(error).__name__}: {error}") from error

    def by_rules(self, batch: Batch) -> Pass | str:
        """A pass by rules, or why there is none."""
        graph = recorded(self.subject, batch, keep_graph=self.keep_graph)
        if graph.trace.opaque:
            return graph.trace.opaque[0]
        return self.checked(graph, batch, by_autograd=False)

    def by_autograd(self, batch: Batch, reason: str | None) -> Pass:
        """A pass by autograd, to each op that uses a weight."""
        with random_state_kept(self.subject.model, batch.args, batch.kwargs):
            trace = record(self.subject, batch, edges=True, keep_graph=bool(self.keep_graph))
        if reason is not None and not trace.opaque:
            trace.opaque.append(reason)
        if trace.opaque and trace.hidden and trace.count > 1:
            raise SamplesLost(f"{trace.opaque[0]} that reads parameters")
        found = self.checked(Graph.of(trace), batch, by_autograd=True)
        if isinstance(found, str):
            raise SamplesLost(found)
        return found

    def checked(self, graph: Graph, batch: Batch, *, by_autograd: bool) -> Pass | str:
        """The pass, or why it cannot be used."""
        if not graph.trace.output.active:
            raise Refused("the model's output does not depend on the chosen parameters")
        found = graph.memo.get("verdict") or verdict(self.subject, batch, graph, by_autograd)
        tell_problem(partial(program_name, graph, by_autograd), found.problem)
        if found.problem is not None:
            return found.problem
        prediction = graph.trace.prediction
        note = f"{batch.note}\n{found.note}" if batch.note else found.note
        return Pass(graph, prediction, batch, self.budget, by_autograd, note)


def with_progress(batches: Iterator[T], data: Any) -> Iterator[T]:
    """A tqdm bar over the batches."""
    total = len(data) if hasattr(data, "__len__") and not isinstance(data, Tensor) else None
    yield from progress_bar(batches, total=total, unit="batch")


def progress_bar(items: Any = None, **options: Any) -> Any:
    """A bar of tqdm, over items or to be updated."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    return tqdm(items, **options)
