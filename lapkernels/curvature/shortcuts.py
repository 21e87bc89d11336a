"""Recording the functions that a model calls where these are known to be one op of torch.

Watching every op below autograd costs far more than a small op itself. A function in ``FUNCTIONS``
is run as it is and its op noted at once; every other one runs watched by the recorder, so that both
make one and the same record. What torch runs without a call of Python's, such as a compiled
function, is not seen here. It leaves its trace, a tensor that no function has made or a write that
no function did: ``Unseen`` is raised, and the whole pass is to be watched.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lapkernels.curvature.functions import FUNCTIONS, QUESTIONS, Function
from lapkernels.curvature.operator import tensors_of
from lapkernels.curvature.recorder import Recorder
from lapkernels.curvature.trace import Value


class Unseen(RuntimeError):
    """Something was computed that no function of torch was called for."""


class Shortcuts(TorchFunctionMode):
    """Sees every function of torch; ``constants`` are what a model may read beside parameters."""

    def __init__(self, recorder: Recorder, constants: Iterable[Tensor]) -> None:
        super().__init__()
        self._unseen = False
        self._recorder = recorder
        recorder.partial = True
        self._constants = {id(tensor) for tensor in constants}
        self._versions: dict[int, int] = {}
        self._note_versions(0)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        function = FUNCTIONS.get(func)
        if function is not None:
            try:
                given = function.arguments(*args, **kwargs)
            except TypeError:
                given = None
            if given is not None:
                tensors = tensors_of(given)
                for tensor in tensors:
                    self.check(tensor)
                values = self._recorder.operands(tensors)
                if _is_plain(function.name, tensors, values):
                    return self._run(function, func, args, kwargs, given, tensors, values)
        elif func in QUESTIONS:
            return func(*args, **kwargs)
        return self._watch(func, args, kwargs)

    def _run(
        self,
        function: Function,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: tuple[Any, ...],
        tensors: list[Tensor],
        values: list[Value],
    ) -> Tensor:
        recorder = self._recorder
        if function.run is None:
            outputs = (func(*args, **kwargs),)
        else:
            outputs = tuple(function.run(*given))
        out = outputs[0]
        if not any(out is tensor for tensor in tensors):
            recorder.record(function.name, function.op, given, {}, tensors, values, outputs)
            for one in outputs:
                self._versions[id(one)] = _version(one)
        return out

    def _watch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = self._recorder
        for tensor in (*tensors_of(args), *tensors_of(kwargs.values())):
            self.check(tensor)
        known = len(recorder.values)
        with recorder:
            out = func(*args, **kwargs)
        if recorder.has_met_unknown:
            # What autograd kept of ops inside a function, such as a transposed weight.
            self._fail()
        self._note_versions(0 if recorder.has_written else known)
        recorder.has_written = False
        return out

    def _note_versions(self, first: int) -> None:
        """Note the state of all tensors but the ``first`` that became known."""
        for key, (_, tensor) in islice(self._recorder.values.items(), first, None):
            self._versions[key] = _version(tensor)

    def check(self, tensor: Tensor) -> None:
        """Raise ``Unseen`` unless a tensor, as it is, was made by functions that were seen."""
        key = id(tensor)
        version = self._versions.get(key)
        if version is None and key in self._constants:
            self._versions[key] = _version(tensor)
        elif version != _version(tensor):
            self._fail()

    def _fail(self) -> None:
        self._unseen = True
        raise Unseen

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        # The model may have caught the error, or made another of it.
        if self._unseen and not isinstance(error, Unseen):
            raise Unseen from error


def _version(tensor: Tensor) -> int:
    """Changes with every write; those made in inference mode count none."""
    return -1 if tensor.is_inference() else tensor._version


def _is_plain(name: str, tensors: list[Tensor], values: list[Value]) -> bool:
    """Whether torch runs this op on these tensors and nothing else before or after it."""
    for tensor in tensors:
        if type(tensor) is not Tensor:
            return False
    if torch.is_autocast_enabled(tensors[0].device.type):
        return False
    if name in ("aten::linear", "aten::convolution"):
        # Only data times a weight; whatever else may stand here is for the ops inside.
        data, *weights = values
        return data.samples is not None and all(value.samples is None for value in weights)
    return True
