"""Chooses the implementation of an op, and says why.

The backends, of which one is in force at any time:

    auto        the compiled kernel where there is one for the tensors at hand, torch's own library
                where an op says that it is faster, else the reference
    reference   always the pure-torch formula
    cpp         the compiled C++ kernel; tensors it cannot serve raise. No kernel sees empty
                tensors, nor calls inside torch.func or forward mode: those are the reference's

The start value is the environment variable LAPKERNELS_BACKEND, or auto.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from lapkernels.kernels.native import NATIVE, native_op

BACKENDS = ("auto", "reference", "cpp")
DTYPES = (torch.float32, torch.float64)

HOW_TO_COMPILE = (
    "Given a C++20 compiler, `pip install -v --no-build-isolation --force-reinstall --no-deps .` "
    "in the source folder compiles the kernels; `python -m lapkernels info` shows what went wrong"
)


def _checked(name: str, source: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{source}: unknown backend {name!r}; choose one of {', '.join(BACKENDS)}")
    return name


_START = _checked(os.environ.get("LAPKERNELS_BACKEND") or "auto", "LAPKERNELS_BACKEND")
_backend: ContextVar[str] = ContextVar("lapkernels_backend", default=_START)


def current_backend() -> str:
    """The backend in force in this thread."""
    return _backend.get()


class use_backend:
    """Puts a backend in force: from the call on, or, as a context manager, for its block.

    Like torch's grad mode it holds for the calling thread (or asyncio task); a new thread starts
    from LAPKERNELS_BACKEND.
    """

    def __init__(self, name: str) -> None:
        self._token = _backend.set(_checked(name, "use_backend"))

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _backend.reset(self._token)


# The result of a lookup never changes, so it is kept, "not there" included.
_native_op = functools.cache(native_op)


def compiled(op: str, *tensors: Tensor | None) -> Callable[..., Any] | None:
    """The compiled kernel of `op` for these tensors, or None if the reference is to serve.

    An argument that is None (an optional tensor left out) puts no condition on the kernel.
    Raises RuntimeError, with the reason, if the backend cpp is forced and cannot serve.
    """
    backend = _backend.get()
    if backend == "reference":
        return None
    kernel = _native_op(op)
    if kernel is not None and _unsuitable(tensors) is None:
        return kernel
    if backend == "cpp":
        raise RuntimeError(
            f"the backend 'cpp' is forced, but cannot serve {op}: {_why_not_compiled(op, tensors)}"
        )
    if NATIVE.path is None:
        _warn_that_reference_serves()
    return None


def _unsuitable(tensors: Iterable[Tensor | None]) -> str | None:
    """Why no compiled kernel takes these tensors together, or None if one may."""
    dtype = None
    for tensor in tensors:
        if tensor is None:
            continue
        if not tensor.is_cpu:
            return f"a tensor is on {tensor.device}, and compiled kernels exist for cpu only"
        if dtype is None:
            dtype = tensor.dtype
            if dtype not in DTYPES:
                return f"a tensor has dtype {dtype}; compiled kernels take float32 and float64"
        elif tensor.dtype != dtype:
            return f"tensors of {dtype} and {tensor.dtype} are mixed"
    return None


def _why_not_compiled(op: str, tensors: Iterable[Tensor | None] = ()) -> str | None:
    if NATIVE.path is None:
        return NATIVE.reason
    if _native_op(op) is None:
        return "the compiled library has no kernel of that name"
    return _unsuitable(tensors)


@functools.cache
def _warn_that_reference_serves() -> None:
    """Warns the first time an op wants the missing library; cached, hence once per process."""
    warnings.warn(
        f"lapkernels runs on its slower reference backend: {NATIVE.reason}. {HOW_TO_COMPILE}. "
        "LAPKERNELS_BACKEND=reference chooses this backend without a warning.",
        UserWarning,
        stacklevel=3,
    )


@dataclass(frozen=True)
class OpReport:
    """Who serves an op on a device, and why each other backend does not.

    `backend` is None when the forced backend cannot serve, so that a call raises.
    """

    op: str
    device: str
    backend: str | None
    reasons: Mapping[str, str]


def report(op_names: Iterable[str]) -> list[OpReport]:
    """One row for each op and each kind of device this machine has, for the backend in force."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [_report_one(op, device) for op in op_names for device in devices]


def _report_one(op: str, device: str) -> OpReport:
    backend = _backend.get()
    no_kernel = _why_not_compiled(op)
    if no_kernel is None and device != "cpu":
        no_kernel = f"there is no compiled kernel for {device}"
    if backend == "reference":
        return OpReport(op, device, "reference", {"cpp": "the backend 'reference' is forced"})
    if no_kernel is None:
        forced = "the backend 'cpp' is forced" if backend == "cpp" else "the compiled kernel serves"
        return OpReport(op, device, "cpp", {"reference": forced})
    if backend == "cpp":
        return OpReport(
            op, device, None, {"cpp": no_kernel, "reference": "the backend 'cpp' is forced"}
        )
    return OpReport(op, device, "reference", {"cpp": no_kernel})
