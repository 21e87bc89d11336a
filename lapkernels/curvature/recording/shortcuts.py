"""Recording functions that a model calls and that are known to be one op of torch.

Recording every op below autograd costs far more than a small op itself. A function in ``FUNCTIONS``
is run and its op recorded at once; every other one runs under the recorder, so that both make the
same record. Compiled functions bypass these hooks; an unknown tensor or write raises ``Unseen``,
and the whole pass is recorded op by op.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature.recording.aliasing import version_of
from lapkernels.curvature.recording.layers import EXPANSIONS, KINDS
from lapkernels.curvature.recording.operators import tensors_of
from lapkernels.curvature.recording.packed import PACKING, Packing
from lapkernels.curvature.recording.recorder import Recorder
from lapkernels.curvature.recording.run_model import mkldnn_off
from lapkernels.curvature.recording.torch_functions import (
    FUNCTIONS,
    QUESTIONS,
    VIEW,
    Function,
    is_view,
)
from lapkernels.curvature.recording.trace import Calls, Number, Step, Value, numbered
from lapkernels.curvature.recording.watch import Watch
from lapkernels.rules.base.local_gradient import as_tuple


class Unseen(RuntimeError):
    """A tensor or a write that no hooked function made."""


class Shortcuts(Watch):
    """A mode that sees every torch function.

    ``given`` are the tensors that a pass starts from, the first of them known to the recorder; the
    others are constants that a model may read.
    """

    error = Unseen

    def __init__(self, recorder: Recorder, given: Sequence[Tensor]) -> None:
        super().__init__()
        self._recorder = recorder
        recorder.partial = True
        self._constants = {id(tensor) for tensor in given[len(recorder.values) :]}
        self._order = [Number(index) for index in range(len(given))]
        self._numbers = dict(zip(map(id, given), self._order, strict=True))
        self._steps: list[Step] | None = []
        self._versions: dict[int, int] = {}
        self._note_versions(0)
        self._packing: Packing | None = None

    def __enter__(self) -> Shortcuts:
        recorder = self._recorder
        self._packing = Packing(recorder.count, self._define, recorder.operand, self._call)
        super().__enter__()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        # It refers to this mode: a cycle would keep all tensors until a garbage collection.
        self._packing = None
        super().__exit__(kind, error, trace)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        expansion = EXPANSIONS.get(func)
        if expansion is not None and self._expands(args):
            result = expansion(self._call, *args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in PACKING and self._packing is not None:
            result = self._packing(func, args, kwargs)
            if result is not NotImplemented:
                self._steps = None
                return result
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

    def _define(self, tensor: Tensor, value: Value) -> None:
        self._recorder.define(tensor, value)
        self._versions[id(tensor)] = version_of(tensor)

    def _call(self, func: Any, *args: Any) -> Any:
        """A call of a function by an expansion."""
        return self.__torch_function__(func, (), args)

    def _expands(self, args: tuple[Any, ...]) -> bool:
        """Whether a layer is applied to samples with weights that are the same for all of them."""
        tensors = tensors_of(args)
        for tensor in tensors:
            self.check(tensor)
        samples = self._recorder.operands(tensors)[0].samples
        return samples is not None and not torch.is_autocast_enabled(tensors[0].device.type)

    def _run(
        self,
        function: Function,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: tuple[Any, ...],
        tensors: list[Tensor],
        values: list[Value],
    ) -> Any:
        recorder = self._recorder
        kept = recorder.memory.kept_count
        grad = torch.is_grad_enabled()
        if function.run is None:
            outputs = (func(*args, **kwargs),)
        else:
            outputs = tuple(function.run(*given))
        out = outputs[0]
        returned = next((k for k, tensor in enumerate(tensors) if out is tensor), None)
        numbers = self._numbers
        if self._steps is not None:
            names, rest = tuple(kwargs), numbered(tuple(kwargs.values()), numbers)
            own = tuple([numbered(one, numbers) for one in given])
            call = (func, function, numbered(args, numbers), names, rest, own, grad)
            kinds = [(one.shape, one.dtype) for one in outputs]
            place = None if returned is None else numbers[id(out)].index
            self._steps.append(Step(*call, kinds, [], place))
        if returned is None:
            call = (function.name, function.op, given, {}, tensors, values, outputs)
            recorder.record(*call, function.rule)
            self._number(outputs)
            self._note_kept(kept)
        return outputs if function.all else out

    def _note_kept(self, first: int) -> None:
        """Record which tensors the rule of the last call saves, and where."""
        if self._steps is None:
            return
        for kept, tensor in self._recorder.memory.kept_since(first):
            number = self._numbers.get(id(tensor))
            if number is None:
                self._steps = None
                return
            self._steps[-1].kept.append((kept, number.index))

    def calls(self, output: Tensor) -> Calls | None:
        """All calls of a pass with this output, if they can be replayed."""
        if self._steps is None:
            return None
        return Calls(self._steps, self._order, self._numbers[id(output)].index)

    def _watch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder, steps = self._recorder, self._steps
        self._steps, kept = None, recorder.memory.kept_count
        for tensor in (*tensors_of(args), *tensors_of(kwargs.values())):
            self.check(tensor)
        known = len(recorder.values)
        with mkldnn_off if func in KINDS else nullcontext(), recorder:
            out = func(*args, **kwargs)
        if recorder.has_met_unknown:
            # Saved by autograd inside a function, such as a transposed weight.
            self.fail()
        self._note_versions(0 if recorder.has_written else known)
        if steps is not None and not recorder.has_written and is_view(func, args, kwargs):
            self._steps = steps
            self._note_view(func, args, kwargs, as_tuple(out), kept)
        recorder.has_written = False
        return out

    def _note_view(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: tuple[Tensor, ...],
        kept: int,
    ) -> None:
        """Add a call of which all tensors are known to the steps."""
        numbers = self._numbers
        if self._steps is None or any(id(one) in numbers for one in outputs):
            self._steps = None
            return
        own, values = numbered(args, numbers), numbered(tuple(kwargs.values()), numbers)
        kinds = [(one.shape, one.dtype) for one in outputs]
        grad = torch.is_grad_enabled()
        self._steps.append(Step(func, VIEW, own, tuple(kwargs), values, (), grad, kinds, []))
        self._number(outputs)
        self._note_kept(kept)

    def _number(self, outputs: tuple[Tensor, ...]) -> None:
        for one in outputs:
            self._versions[id(one)] = version_of(one)
            self._numbers[id(one)] = Number(len(self._order))
            self._order.append(self._numbers[id(one)])

    def _note_versions(self, first: int) -> None:
        """Record the versions of all known tensors but the ``first``."""
        for key, (_, tensor) in islice(self._recorder.values.items(), first, None):
            self._versions[key] = version_of(tensor)

    def check(self, tensor: Tensor) -> None:
        """Raise ``Unseen`` unless hooked functions made the tensor's present values."""
        key = id(tensor)
        version = self._versions.get(key)
        if version is None and key in self._constants:
            self._versions[key] = version_of(tensor)
        elif version != version_of(tensor):
            self.fail()


def _is_plain(name: str, tensors: list[Tensor], values: list[Value]) -> bool:
    """Whether torch runs this op on these tensors and no other op with it."""
    for tensor in tensors:
        if type(tensor) is not Tensor:
            return False
    if torch.is_autocast_enabled(tensors[0].device.type):
        return False
    if name in ("aten::linear", "aten::convolution"):
        # Data times a weight; anything else is recorded op by op.
        data, *weights = values
        return data.samples is not None and all(value.samples is None for value in weights)
    return True
