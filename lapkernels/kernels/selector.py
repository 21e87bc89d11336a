"""The choice of an op's backend, and its reasons.

One of these backends is in force at any time:

    auto        the first kernel that is made for the tensors at hand, compiled before Triton,
                torch's own library where an op says that it is faster, else the reference
    reference   always the pure-torch formula
    cpp         the compiled C++ kernel, for tensors on the CPU; others raise
    cuda        the compiled CUDA kernel, for tensors on a GPU; others raise
    triton      the Triton kernel, for tensors on a GPU, and in Triton's interpreter for tensors on
                the CPU; others raise

No kernel sees empty tensors, nor calls inside torch.func or forward mode: those are the
reference's. The start value is the environment variable LAPKERNELS_BACKEND, or auto.
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

from lapkernels.kernels import triton
from lapkernels.kernels.native import NATIVE, cuda_ops, native_op, why_not_cuda

DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Kernels:
    """The tensors that the kernels of a backend take.

    Those of the ops in ``one_constant`` need one of their first two tensors to be the same for all
    columns.
    """

    device: str
    dtypes: tuple[torch.dtype, ...]
    one_constant: frozenset[str] = frozenset()


# The backends with kernels, in auto's order of preference.
KERNELS = {
    "cpp": Kernels("cpu", DTYPES),
    "cuda": Kernels("cuda", (*DTYPES, torch.float16, torch.bfloat16), frozenset({"jacobian_gram"})),
    "triton": Kernels("cuda", triton.DTYPES, triton.ONE_CONSTANT),
}
BACKENDS = ("auto", "reference", *KERNELS)
# Those of auto for tensors of a device. Triton on cpu is its interpreter, which has to be forced.
_ASKED = {
    device: [name for name, kernels in KERNELS.items() if kernels.device == device]
    for device in ("cpu", "cuda")
}

# What backends cannot do though they have the op: (backends, ops, when).
BY_SHAPE = (
    ("cpp, cuda, triton", "all", "a tensor is empty, or the call is inside torch.func"),
    *[
        (name, ", ".join(sorted(kernels.one_constant)), "both tensors depend on the column")
        for name, kernels in KERNELS.items()
        if kernels.one_constant
    ],
)

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
    """Set the backend: from the call on or, as a context manager, for its block.

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


# Cached, absence included: the result of a lookup never changes.
_native_op = functools.cache(native_op)
_cuda_ops = functools.cache(cuda_ops)
_why_not_cuda = functools.cache(why_not_cuda)


def compiled(op: str, *tensors: Tensor | None) -> Callable[..., Any] | None:
    """The kernel of `op` for these tensors, or None if the reference is to serve.

    An argument that is None (an optional tensor left out) puts no condition on the kernel.
    Raises RuntimeError, with the reason, if a backend with kernels is forced and cannot serve.
    """
    backend = _backend.get()
    if backend == "reference":
        return None
    if backend != "auto":
        reason = why_not(backend, op, tensors)
        if reason is not None:
            raise RuntimeError(
                f"the backend {backend!r} is forced, but cannot serve {op}: {reason}"
            )
        return _kernel(backend, op)
    first = next((tensor for tensor in tensors if tensor is not None), None)
    device = "cpu" if first is None or first.is_cpu else first.device.type
    for name in _ASKED.get(device, ()):
        if why_not(name, op, tensors) is None:
            return _kernel(name, op)
    if NATIVE.path is None:
        _warn_that_reference_serves()
    return None


def _kernel(backend: str, op: str) -> Callable[..., Any] | None:
    return triton.triton_op(op) if backend == "triton" else _native_op(op)


def why_not(backend: str, op: str, tensors: Iterable[Tensor | None] = ()) -> str | None:
    """Why a backend with kernels does not serve this op on these tensors, or None if it does."""
    if backend == "triton":
        return triton.why_not(op, tensors) or _shape_reason(backend, op, tensors)
    if NATIVE.path is None:
        return NATIVE.reason
    if _native_op(op) is None:
        return "the compiled library has no kernel of that name"
    if backend == "cuda" and op not in _cuda_ops():
        if not _cuda_ops():
            return "the compiled library was built without CUDA"
        return "the compiled library has no CUDA kernel of that name"
    return (
        _unsuitable(KERNELS[backend], tensors)
        or (_device_reason(tensors) if backend == "cuda" else None)
        or _shape_reason(backend, op, tensors)
    )


def _device_reason(tensors: Iterable[Tensor | None]) -> str | None:
    """Why the CUDA kernels do not run on the tensors' device; asked once for each."""
    given = next((tensor for tensor in tensors if tensor is not None), None)
    return None if given is None else _why_not_cuda(given.device.index or 0)


def _shape_reason(backend: str, op: str, tensors: Iterable[Tensor | None]) -> str | None:
    if op not in KERNELS[backend].one_constant:
        return None
    given = [tensor for tensor in tensors if tensor is not None]
    if given and min(given[0].shape[0], given[1].shape[0]) > 1:
        return (
            f"both tensors depend on the column, and the {backend} kernel takes one that does not"
        )
    return None


def _unsuitable(kernels: Kernels, tensors: Iterable[Tensor | None]) -> str | None:
    """Why these kernels do not take these tensors together, or None if they may."""
    dtype, on_cpu = None, kernels.device == "cpu"
    for tensor in tensors:
        if tensor is None:
            continue
        # Reading a tensor's device makes a new object at each call.
        if not (tensor.is_cpu if on_cpu else tensor.device.type == kernels.device):
            return f"a tensor is on {tensor.device}, and these kernels are for {kernels.device}"
        if dtype is None:
            dtype = tensor.dtype
            if dtype not in kernels.dtypes:
                taken = ", ".join(str(known).removeprefix("torch.") for known in kernels.dtypes)
                return f"a tensor has dtype {dtype}; these kernels take {taken}"
        elif tensor.dtype != dtype:
            return f"tensors of {dtype} and {tensor.dtype} are mixed"
    return None


@functools.cache
def _warn_that_reference_serves() -> None:
    """Warn that the library is missing; cached, hence once per process."""
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
    forced = _backend.get()
    reasons = {name: _why_not_on(name, op, device) for name in KERNELS}
    if forced == "auto":
        if device == "cpu" and reasons["triton"] is None:
            reasons["triton"] = "the interpreter is for tests: use_backend('triton') forces it"
        serving = next((name for name in KERNELS if reasons[name] is None), "reference")
        others = f"the backend {serving!r} serves"
    else:
        serving = forced if reasons.get(forced) is None else None
        others = f"the backend {forced!r} is forced"
    return OpReport(
        op,
        device,
        serving,
        {name: reasons.get(name) or others for name in (*KERNELS, "reference") if name != serving},
    )


def _why_not_on(backend: str, op: str, device: str) -> str | None:
    """Why a backend does not serve an op on any tensors of this kind of device."""
    if backend == "triton":
        return why_not(backend, op) or triton.why_not_device(device)
    wanted = KERNELS[backend].device
    reason = why_not(backend, op) or (None if device == wanted else f"it is for {wanted}")
    if reason is None and backend == "cuda":
        reason = _why_not_cuda(torch.cuda.current_device())
    return reason
