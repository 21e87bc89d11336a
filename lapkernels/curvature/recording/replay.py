"""Replaying passes that make the same calls as an earlier one, with its rules and new tensors.

Building rules costs more than small ops themselves, and all batches of a data set give the same
ones. A recorded pass whose functions were all known (``shortcuts``) leaves a ``Template``: its
calls in order, with tensors numbered. A later pass of the same model on tensors of the same
signature runs the model and compares each call: the same function, arguments and numbers. Then it
reuses the template's rules, with its own tensors in them. At the first difference the pass is
recorded instead. If only module settings matter, recorded calls are replayed without running the
model: hooks, overridden methods and modules of other kinds may do anything.

A template serves one pass at a time: it is taken from the model's list and returned, without
tensors, when the pass is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from lapkernels.curvature.data.autocast import present_casts
from lapkernels.curvature.data.batches import Batch
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.recording.graph import Graph
from lapkernels.curvature.recording.run import record
from lapkernels.curvature.recording.run_model import Start, Subject, run
from lapkernels.curvature.recording.trace import Calls, Step, changed, filled, keep
from lapkernels.curvature.recording.watch import Different, Replay
from lapkernels.ops.base.precision import widened
from lapkernels.rules.base.local_gradient import as_tuple

KeepsGraph = bool | Callable[[Graph], bool]

# Two templates alternate: a pass starts while its caller still holds the one before.
TEMPLATES = 2
# Signatures of inputs that are remembered for a model.
KINDS = 8

# Layers whose forward reads the input, the layer's parameters and buffers, and the attributes named
# by the class as ``__constants__``, nothing else. A Sequential calls its layers in order.
LAYERS: tuple[type[nn.Module], ...] = (
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Embedding),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softmax, nn.LogSoftmax),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Upsample),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
# The methods that a call of such a layer runs.
_METHODS = ("forward", "_conv_forward", "_output_padding", "_check_input_dim", "__iter__")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_hooks = attrgetter(*_HOOKS)
_Read = Callable[[Any], Any]


def _readers(layer: type[nn.Module]) -> tuple[_Read, Any, _Read]:
    """What reads a layer's methods, these as they are now, and what reads its settings."""
    methods = attrgetter(*(name for name in _METHODS if hasattr(layer, name)))
    constants: Iterable[str] = getattr(layer, "__constants__", ())
    return methods, methods(layer), attrgetter("training", *constants)


_READERS: dict[type[nn.Module], tuple[_Read, Any, _Read]] = {
    layer: _readers(layer) for layer in LAYERS
}


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
                kept.stored = cast(Tensor, None)
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
    tensors = all(isinstance(value, Tensor) for value in (*args, *kwargs.values()))
    if tensors and not subject.watched:
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
    settings = _layer_settings(module for _, module in subject.contents.modules)
    if settings is None:
        return None
    return (*settings, *[name for _, _, keys in subject.contents.places for _, name in keys])


def _layer_settings(modules: Iterable[nn.Module]) -> list[Any] | None:
    """All settings of these modules, in the order of their paths; None if other things matter."""
    # Global module hooks. If torch lacks one of these names, there may be others.
    if any([getattr(every_module, f"_global{name}", True) for name in _HOOKS]):
        return None
    found: list[Any] = []
    for module in modules:
        kind = type(module)
        readers = _READERS.get(kind)
        if readers is None or any(_hooks(module)):
            return None
        methods, known, settings = readers
        if methods(kind) != known or not vars(module).keys().isdisjoint(_METHODS):
            return None
        found.append((kind, settings(module)))
    return found


def _home(subject: Subject, inputs: Iterable[Tensor], names: tuple[str, ...]) -> list[Template]:
    """The free templates for tensors of this signature, under the present autocast."""
    parameters = subject.parameters
    tensors = (*inputs, *parameters.values(), *subject.contents.buffers)
    chosen = tuple([name in subject.chosen for name in parameters])
    signature = [(t.shape, t.dtype, t.device, t.stride()) for t in tensors]
    key = (present_casts(), names, *parameters, chosen, *signature)
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
        prediction=widened(output.detach()),
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
            keep(step, given, keep_graph)
    return given[calls.output]


def _results(step: Step, tensors: Sequence[Tensor]) -> Iterable[Tensor]:
    """The results of a call on other tensors."""
    if step.function.run is not None:
        return step.function.run(*[filled(one, tensors) for one in step.given])
    args = [filled(one, tensors) for one in step.args]
    values = [filled(one, tensors) for one in step.values]
    return as_tuple(step.func(*args, **dict(zip(step.names, values, strict=True))))


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
