"""Replaying passes that make the same calls as an earlier one, with its rules and new tensors.

Building rules costs more than small ops themselves, and all batches of a data set give the same
ones. A recorded pass whose functions were all known (``shortcuts``) leaves a ``Template``: its
calls in order, with tensors numbered. A later pass of the same model on tensors of the same
signature runs the model and compares each call: the same function, arguments and numbers. Then it
reuses the template's rules, with its own tensors in them. At the first difference the pass is
recorded instead. If only module ``settings`` matter, recorded calls are replayed without running
the model.

A template serves one pass at a time: it is taken from the model's list and returned, without
tensors, when the pass is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Batch
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.recording.aliasing import version_of
from lapkernels.curvature.recording.graph import Graph
from lapkernels.curvature.recording.run import record
from lapkernels.curvature.recording.run_model import Start, Subject, run
from lapkernels.curvature.recording.settings import settings_of
from lapkernels.curvature.recording.torch_functions import QUESTIONS, QUESTIONS_WITHOUT_GRAPH
from lapkernels.curvature.recording.trace import Calls, Step, changed, filled, repeats
from lapkernels.curvature.recording.watch import Watch

KeepsGraph = bool | Callable[[Graph], bool]

# Two templates alternate: a pass starts while its caller still holds the one before.
TEMPLATES = 2
# Signatures of inputs that are remembered for a model.
KINDS = 8


@dataclass(eq=False, slots=True)
class Template:
    """The calls of a pass and its graph.

    ``settings`` are those of the model, if nothing else can change its calls.
    """

    calls: Calls
    graph: Graph
    settings: object


class Lease:
    """Held by a pass that uses a template; empties and returns it when the pass is deleted."""

    def __init__(self, template: Template, home: list[Template]) -> None:
        self._template, self._home = template, home

    def __del__(self) -> None:
        for step in self._template.calls.steps:
            for kept, _ in step.kept:
                kept.tensor = cast(Tensor, None)
        if len(self._home) < TEMPLATES:
            self._home.append(self._template)


_free: WeakKeyDictionary[nn.Module, dict[Any, list[Template]]] = WeakKeyDictionary()
_lock = Lock()


def recorded(
    subject: Subject,
    batch: Batch,
    *,
    keep_graph: KeepsGraph = False,
) -> Graph:
    """The graph of the model on a batch, replayed if possible.

    ``keep_graph`` says whether autograd's graph is kept, or for which replayed passes; new ones
    keep it then. torch's random state is restored; replayed calls draw no random numbers.
    """
    args, kwargs = batch.args, batch.kwargs
    home = None
    if all(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
        home = _home(subject, (*args, *kwargs.values()), tuple(kwargs))
        graph = _replayed(home, subject, batch, keep_graph)
        if graph is not None:
            return graph
    with random_state_kept(subject.model, args, kwargs):
        graph = Graph.of(record(subject, batch, keep_graph=bool(keep_graph)))
    trace = graph.trace
    calls, trace.calls = trace.calls, None
    if home is not None and calls is not None and all(n.rule.repeatable for n in trace.nodes):
        empty = changed(trace, prediction=None, differentiable=None, leaves={})
        template = Template(calls, changed(graph, trace=empty), _settings(subject))
        trace.lease = Lease(template, home)
    return graph


def _settings(subject: Subject) -> object:
    """The settings that determine a model's calls, as tuples; None if others may."""
    if len(set(map(id, subject.contents.buffers))) < len(subject.contents.buffers):
        return None
    found = _present_settings(subject)
    try:
        hash(found)
    except TypeError:
        return None
    return found


def _present_settings(subject: Subject) -> tuple[Any, ...] | None:
    settings = settings_of(module for _, module in subject.contents.modules)
    if settings is None:
        return None
    return (*settings, *[name for _, _, keys in subject.contents.places for _, name in keys])


def _home(subject: Subject, inputs: Iterable[Tensor], names: tuple[str, ...]) -> list[Template]:
    """The free templates for tensors of this signature."""
    parameters = subject.parameters
    tensors = (*inputs, *parameters.values(), *subject.contents.buffers)
    chosen = tuple([name in subject.chosen for name in parameters])
    key = (names, *parameters, chosen, *[(t.shape, t.dtype, t.device, t.stride()) for t in tensors])
    with _lock:
        kinds = _free.setdefault(subject.model, {})
        if key not in kinds:
            while len(kinds) >= KINDS:
                del kinds[next(iter(kinds))]
            kinds[key] = []
        return kinds[key]


def _replayed(
    home: list[Template],
    subject: Subject,
    batch: Batch,
    keep_graph: KeepsGraph,
) -> Graph | None:
    """The graph of a pass by a free template, None if its calls differ."""
    try:
        template = home.pop()
    except IndexError:  # none is free (another thread may take the last between test and pop)
        return None
    lease = Lease(template, home)
    keep = keep_graph if isinstance(keep_graph, bool) else keep_graph(template.graph)
    start = Start.of(subject, batch, keep)
    given = start.given(subject)
    settings = template.settings if subject.output is None else None
    output: Tensor | None
    if settings is not None and settings == _present_settings(subject):
        output = _repeated(template.calls, given, keep)
    else:
        output = _watched(template.calls, given, subject, start, keep)
    if output is None:
        return None
    trace = changed(
        template.graph.trace,
        prediction=output.detach(),
        differentiable=output if keep else None,
        leaves={name: start.leaves[name] for name in subject.chosen},
        lease=lease,
    )
    return changed(template.graph, trace=trace)


def _repeated(calls: Calls, given: list[Tensor], keep_graph: bool) -> Tensor | None:
    """The output of the calls on other tensors, None if a result has another signature."""
    if any([type(tensor) is not Tensor for tensor in given]):
        return None
    with torch.set_grad_enabled(keep_graph):
        for step in calls.steps:
            if step.returned is None:
                given += _results(step, given)
            _keep(step, given, keep_graph)
    return given[calls.output]


def _results(step: Step, tensors: Sequence[Tensor]) -> Iterable[Tensor]:
    """The results of a call on other tensors."""
    if step.function.run is not None:
        return step.function.run(*[filled(one, tensors) for one in step.given])
    args = [filled(one, tensors) for one in step.args]
    values = [filled(one, tensors) for one in step.values]
    return (step.func(*args, **dict(zip(step.names, values, strict=True))),)


def _watched(
    calls: Calls,
    given: list[Tensor],
    subject: Subject,
    start: Start,
    keep_graph: bool,
) -> Tensor | None:
    """The output of the model, None if its calls differ."""
    watch = Replay(calls, given, keep_graph)
    try:
        output = run(subject, start, watch)
    except Different:
        return None
    except Exception:
        # Such as a hook on a tensor without a graph; other errors recur when recorded.
        if keep_graph:
            raise
        return None
    return output if watch.is_complete(output) else None


def _keep(step: Step, tensors: Sequence[Tensor], detach: bool) -> None:
    """Store the tensors of a call in its rule."""
    for kept, index in step.kept:
        kept.tensor = tensors[index].detach() if detach else tensors[index]


class Different(RuntimeError):
    """The calls of a pass differ from the template's."""


class Replay(Watch):
    """Compares the functions that a model calls with a template, and stores their tensors in it.

    ``given`` are the tensors known at the start, in the order of their numbers. Without
    ``keep_graph`` the pass runs without autograd, which is faster.
    """

    error = Different

    def __init__(self, calls: Calls, given: Sequence[Tensor], keep_graph: bool) -> None:
        super().__init__()
        self._detach = any(tensor.requires_grad for tensor in given)
        self._questions = QUESTIONS if keep_graph else QUESTIONS_WITHOUT_GRAPH
        self._steps = iter(calls.steps)
        self._order, self._output = calls.numbers, calls.output
        # Kept alive, so that an id means one tensor.
        self._tensors = list(given)
        self._numbers = dict(zip(map(id, given), calls.numbers, strict=False))
        self._versions = [version_of(tensor) for tensor in given]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in self._questions:
            return func(*args, **kwargs)
        step, numbers, tensors = next(self._steps, None), self._numbers, self._tensors
        if (
            step is None
            or func is not step.func
            or torch.is_grad_enabled() is not step.grad
            or not repeats(args, step.args, numbers)
            or tuple(kwargs) != step.names
            or not repeats(tuple(kwargs.values()), step.values, numbers)
        ):
            self.fail()
        run = step.function.run
        if run is None:
            outputs = (func(*args, **kwargs),)
        else:
            outputs = run(*[filled(one, tensors) for one in step.given])
        if step.returned is not None:
            if outputs[0] is not tensors[step.returned]:
                self.fail()
            return outputs[0]
        for out, (shape, dtype) in zip(outputs, step.kinds, strict=True):
            key = id(out)
            if (
                type(out) is not Tensor
                or out.shape != shape
                or out.dtype != dtype
                or key in numbers
            ):
                self.fail()
            numbers[key] = self._order[len(tensors)]
            tensors.append(out)
            self._versions.append(version_of(out))
        _keep(step, tensors, self._detach)
        return outputs[0]

    def is_complete(self, output: Tensor) -> bool:
        """Whether all calls were made, with this output.

        No tensor was written to since it was first seen, and none has a hook on its gradient.
        """
        return (
            next(self._steps, None) is None
            and self._numbers.get(id(output)) is self._order[self._output]
            and self._versions == list(map(version_of, self._tensors))
            and not any(tensor._backward_hooks for tensor in self._tensors)
        )
