"""Triton kernels for NVIDIA and AMD devices, and whether they serve an op.

Triton is an optional dependency: this file imports without it, and the kernels are imported when
one is first called. With TRITON_INTERPRET=1, set before the process starts, Triton runs kernels on
CPU tensors, one program at a time in numpy: for tests, and only if the backend is forced.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# The lowest compute capability that tests compile the kernels for.
CAPABILITY = (8, 0)

# The file that launches the kernel of each op.
MODULES = {
    "gaussian_kl": "parameter_lists",
    "jacobian_gram": "jacobian_gram",
    "jacobian_squared_dot": "jacobian_squared_dot",
    "jacobian_squared_sum": "jacobian_squared_sum",
    "kronecker_input": "kronecker_input",
    "kronecker_output": "kronecker_output",
    "precision_update": "parameter_lists",
    "sample_from_precision": "parameter_lists",
    "squared_conv_input": "squared_conv_input",
    "squared_conv_weight": "squared_conv_weight",
    "squared_derivative": "squared_derivative",
    "squared_gradient_sum": "parameter_lists",
}
# Those that need one of their first two tensors to be the same for all columns.
ONE_CONSTANT = frozenset(op for op in MODULES if op.startswith("jacobian"))


@functools.cache
def absent() -> str | None:
    """Why there is no Triton here, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: `pip install triton`"
    return None


@functools.cache
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter; read once, as Triton itself does."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


@functools.cache
def triton_op(name: str) -> Callable[..., Any] | None:
    """The Triton op of that name, or None; its signature is that of the compiled op."""
    if name not in MODULES or absent() is not None:
        return None
    function = getattr(importlib.import_module(f"{__name__}.{MODULES[name]}"), name)

    def run(target: Tensor | list[Tensor], *rest: Any) -> None:
        """Run on the device of the written tensor, which need not be the current one."""
        device = (target[0] if isinstance(target, list) else target).device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            function(target, *rest)

    return run


def why_not(op: str, tensors: Iterable[Tensor | None] = ()) -> str | None:
    """Why Triton does not serve this op on these tensors, or None if it does."""
    reason = absent()
    if reason is not None:
        return reason
    if op not in MODULES:
        return "there is no Triton kernel of that name"
    return _unsuitable([tensor for tensor in tensors if tensor is not None])


def why_not_device(kind: str, index: int | None = None) -> str | None:
    """Why Triton does not serve tensors of this device, or None if it does."""
    if kind == "cpu":
        return None if interpreted() else "tensors on cpu need its interpreter, TRITON_INTERPRET=1"
    if kind != "cuda":
        return f"a tensor is on {kind}, and Triton kernels exist for cuda"
    if interpreted():
        return "TRITON_INTERPRET is set, and the interpreter takes tensors on cpu"
    return _too_old(torch.cuda.current_device() if index is None else index)


@functools.cache
def _too_old(device: int) -> str | None:
    found = torch.cuda.get_device_capability(device)
    if torch.version.hip or found >= CAPABILITY:
        return None
    return f"the device has compute capability {found}, and {CAPABILITY} is needed"


def _unsuitable(tensors: list[Tensor]) -> str | None:
    for tensor in tensors:
        if tensor.device != tensors[0].device:
            return f"tensors on {tensors[0].device} and {tensor.device} are mixed"
        if tensor.dtype != tensors[0].dtype:
            return f"tensors of {tensors[0].dtype} and {tensor.dtype} are mixed"
    if not tensors:
        return None
    if tensors[0].dtype not in DTYPES:
        return f"a tensor has dtype {tensors[0].dtype}; Triton kernels take {_names(DTYPES)}"
    return why_not_device(tensors[0].device.type, tensors[0].device.index)


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
