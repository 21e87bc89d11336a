"""Modes over the torch functions that a model calls, which can abort the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lapkernels.curvature.recording.aliasing import version_of
from lapkernels.curvature.recording.layers import EXPANSIONS
from lapkernels.curvature.recording.torch_functions import QUESTIONS, QUESTIONS_WITHOUT_GRAPH
from lapkernels.curvature.recording.trace import Calls, filled, keep, repeats
from lapkernels.rules.base.local_gradient import as_tuple


class Watch(TorchFunctionMode):
    """A mode that can abort: ``error`` is raised on exit, whatever the model does with it."""

    error: type[RuntimeError]

    def __init__(self) -> None:
        super().__init__()
        self._failed = False

    def fail(self) -> NoReturn:
        """Abort the run with this error."""
        self._failed = True
        raise self.error

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        # The model may have caught or replaced the error.
        if self._failed and not isinstance(error, self.error):
            raise self.error from error


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
        expansion = EXPANSIONS.get(func)
        if expansion is not None:
            found = expansion(self._call, *args, **kwargs)
            return self.fail() if found is NotImplemented else found
        step, numbers, tensors = next(self._steps, None), self._numbers, self._tensors
        if (
            step is None
            or func != step.func
            or torch.is_grad_enabled() is not step.grad
            or not repeats(args, step.args, numbers)
            or tuple(kwargs) != step.names
            or not repeats(tuple(kwargs.values()), step.values, numbers)
        ):
            self.fail()
        run = step.function.run
        result = func(*args, **kwargs) if run is None else None
        if run is None:
            outputs = as_tuple(result)
        else:
            outputs = run(*[filled(one, tensors) for one in step.given])
            result = outputs if step.function.all else outputs[0]
        if step.returned is not None:
            if outputs[0] is not tensors[step.returned]:
                self.fail()
            return result
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
        keep(step, tensors, self._detach)
        return result

    def _call(self, func: Any, *args: Any) -> Any:
        return self.__torch_function__(func, (), args)

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
