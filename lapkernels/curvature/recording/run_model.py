"""Running a user's model with its tensors replaced, without changing it.

What runs is a copy of the model's modules that shares their tensors, so whatever a ``forward``
stores on ``self`` stays in the copy. Code may also reach the original modules, by a bound method or
a closure: these have their tensors replaced for the running thread only. So several threads may run
one model at the same time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, get_ident
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from lapkernels.curvature.data.autocast import callers_autocast
from lapkernels.curvature.data.batches import (
    Batch,
    Output,
    check_names,
    mapped,
    selector,
    tensors_in,
)
from lapkernels.curvature.data.contents import Contents
from lapkernels.curvature.errors import Refused


class Runner:
    """Runs one model with values by the first name of each parameter and by names of buffers."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._copies: dict[int, nn.Module] = {}

    @property
    def paths(self) -> dict[int, str]:
        """Names of modules by id, copies included."""
        paths = self._contents.paths
        return paths | {id(copy): paths[key] for key, copy in self._copied().items()}

    def __call__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], values: Mapping[str, Tensor]
    ) -> Any:
        """The model's outputs."""
        copies = self._copied()
        tables: list[tuple[nn.Module, str, dict[str, Any]]] = []
        for module, name, keys in self._contents.places:
            own = {key: values[full] for key, full in keys if full in values}
            if own:
                tables.append((module, name, own))
            copy = copies[id(module)]
            if copy is not module:
                vars(copy)[name] = {**vars(module)[name], **own}
        model = copies[id(self._contents.model)]
        with _shown(tables), callers_autocast():
            try:
                return model(*args, **kwargs)
            except TypeError:
                check_names(model, args, kwargs)
                raise
            except (AssertionError, NotImplementedError) as error:
                self._check_traced(error)
                raise

    def _check_traced(self, error: Exception) -> None:
        """Refuse torch.cond and similar where the model fails because of it."""
        paths, where, traced = self.paths, "", False
        for frame, _ in walk_tb(error.__traceback__):
            where = paths.get(id(frame.f_locals.get("self")), where)
            traced |= Path(frame.f_code.co_filename).parent.name == "_higher_order_ops"
        if traced:
            raise Refused(
                f"{where or 'the model'} runs in torch.cond or its like, whose branches cannot be "
                f"followed ({str(error).partition('.')[0]}): write an if or a loop of Python"
            ) from error

    def _copied(self) -> dict[int, nn.Module]:
        """The copy of each module by its id."""
        if not self._copies:
            for _, module in self._contents.modules:
                if id(module) not in self._copies:
                    self._copies[id(module)] = _shallow(module)
            for _, module in self._contents.modules:
                copy = self._copies[id(module)]
                if copy is not module:
                    children = module._modules.items()
                    vars(copy)["_modules"] = {
                        key: None if child is None else self._copies[id(child)]
                        for key, child in children
                    }
        return self._copies


@dataclass
class Subject:
    """A model, its chosen parameters and output, and what is looked up in it once.

    It is ``watched`` op by op if shortcuts have missed an op before.
    """

    contents: Contents
    chosen: dict[str, nn.Parameter]
    parameters: dict[str, nn.Parameter]
    runner: Runner
    output: Output = None
    watched: bool = False

    @classmethod
    def of(
        cls, contents: Contents, chosen: dict[str, nn.Parameter], output: Output = None
    ) -> Subject:
        """From the contents of a model."""
        return cls(contents, chosen, contents.parameters, Runner(contents), output)

    @property
    def model(self) -> nn.Module:
        """The user's model."""
        return self.contents.model


@dataclass(frozen=True)
class Start:
    """The tensors a pass starts from: copies of the inputs, and a leaf for each parameter."""

    args: Any
    kwargs: Any
    tensors: list[Tensor]
    leaves: dict[str, Tensor]

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.tensors[0].shape[0]

    @classmethod
    def of(cls, subject: Subject, batch: Batch, keep_graph: bool = True) -> Start:
        """Start of a batch. With ``keep_graph`` leaves of chosen parameters require a gradient."""
        args, kwargs = copied(batch.args), copied(batch.kwargs)
        leaves: dict[str, Tensor] = {}
        for name, parameter in subject.parameters.items():
            leaves[name] = parameter.detach()
            if keep_graph and name in subject.chosen:
                leaves[name].requires_grad_()
        return cls(args, kwargs, list(tensors_in((args, kwargs))), leaves)

    def given(self, subject: Subject) -> list[Tensor]:
        """Every tensor that a pass may read: inputs, parameters and buffers."""
        return [*self.tensors, *self.leaves.values(), *subject.contents.buffers]


def run(subject: Subject, start: Start, watch: AbstractContextManager[Any]) -> Tensor:
    """The model's output, run under the mode ``watch``."""
    select = selector(subject.output, start.count)
    # Modes over functions see recurrent layers as such.
    fused_cells = isinstance(watch, TorchFunctionMode)
    with torch.enable_grad(), plain_ops(subject.contents, fused_cells=fused_cells), watch:
        return select(subject.runner(start.args, start.kwargs, start.leaves))


def call_model(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    values: Mapping[str, Tensor] | None = None,
) -> Any:
    """The model's outputs for copies of its inputs, with ``values`` in place of its own tensors.

    These are parameters and buffers by name; a tied parameter has one of its names.
    """
    contents, values = Contents.of(model), values or {}
    own = {contents.firsts.get(id(contents.aliases.get(k)), k): v for k, v in values.items()}
    return Runner(contents)(copied(args), copied(dict(kwargs)), own)


def copied(inputs: Any) -> Any:
    """Copies of inputs, which a model may write to."""
    return mapped(lambda x: x.detach().clone(), inputs)


def _shallow(module: nn.Module) -> nn.Module:
    """A copy of a module with its own tables; scripted ones are returned unchanged."""
    if isinstance(module, torch.jit.ScriptModule):
        return module
    copy = object.__new__(type(module))
    vars(copy).update(vars(module))
    for name in ("_parameters", "_buffers"):
        vars(copy)[name] = dict(vars(module)[name])
    return copy


class _Table(dict[str, Any]):
    """A module's table of tensors with entries by thread."""

    def __init__(self, plain: dict[str, Any]) -> None:
        super().__init__(plain)
        self.plain = plain
        self.own: dict[int, dict[str, Any]] = {}

    def _seen(self) -> dict[str, Any]:
        own = self.own.get(get_ident())
        return self.plain if own is None else {**self.plain, **own}

    def __getitem__(self, key: str) -> Any:
        return self._seen()[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self._seen().get(key, default)

    def items(self) -> Any:
        return self._seen().items()

    def values(self) -> Any:
        return self._seen().values()

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.plain[key] = value

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        del self.plain[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.plain),)


_tables = Lock()


@contextmanager
def _shown(tables: list[tuple[nn.Module, str, dict[str, Any]]]) -> Iterator[None]:
    """Inside, this thread sees other entries in the modules' tables."""
    me = get_ident()
    changed: list[tuple[nn.Module, str, _Table, dict[str, Any] | None]] = []
    try:
        with _tables:
            for module, name, own in tables:
                table = vars(module)[name]
                if type(table) is not _Table:
                    table = _Table(table)
                changed.append((module, name, table, table.own.get(me)))
                table.own[me] = own
                vars(module)[name] = table
        yield
    finally:
        with _tables:
            for module, name, table, before in reversed(changed):
                if before is None:
                    table.own.pop(me, None)
                else:
                    table.own[me] = before
                if not table.own:
                    vars(module)[name] = table.plain


class Setting:
    """A setting of the whole process, restored when the last thread leaves it."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._lock, self._users = Lock(), 0
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._stack.enter_context(self._make())
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._stack.close()


@contextmanager
def _without_fused_layers() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


_fused_layers_off = Setting(_without_fused_layers)
_cudnn_off = Setting(lambda: torch.backends.cudnn.flags(enabled=False))
mkldnn_off = Setting(lambda: torch.backends.mkldnn.flags(enabled=False))
_compiler_off = Setting(lambda: torch.compiler.set_stance("force_eager"))
# Fused attention has no second derivative and no forward mode.
plain_attention = Setting(lambda: sdpa_kernel(SDPBackend.MATH))


@contextmanager
def plain_ops(
    contents: Contents, *, fused_layers: bool = True, fused_cells: bool = False
) -> Iterator[None]:
    """The model runs op by op: nothing compiled, and no recurrent layer as one fused op.

    Fused ops hide intermediate results. ``fused_layers`` allows those of transformers, and
    ``fused_cells`` those of recurrent layers that do not write to their weights, as cuDNN's do.
    """
    with ExitStack() as stack:
        # Loading dynamo takes seconds; unless it is loaded, nothing is compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_compiler_off)
        if contents.recurrent:
            stack.enter_context(_cudnn_off)
            if not fused_cells:
                stack.enter_context(mkldnn_off)
        if not fused_layers:
            stack.enter_context(_fused_layers_off)
        yield
