"""The shared library of compiled kernels: loading it, and facts about it.

The library registers its ops in torch's namespace `lapkernels_native` when it is loaded; it is no
Python module. The environment variable LAPKERNELS_NO_NATIVE=1 leaves it unloaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).parents[1]
NAMESPACE = "lapkernels_native"


@dataclass(frozen=True)
class Native:
    """The loaded library: `path` is None if and only if `reason` says why it is absent."""

    path: Path | None
    reason: str | None


def build_record(package: Path = PACKAGE) -> dict[str, Any] | None:
    """The installation's record of compiling the library, if there is one."""
    try:
        return json.loads((package / "_build.json").read_text())
    except (OSError, ValueError):
        return None


def load(package: Path = PACKAGE) -> Native:
    """Load the library of a package folder; a failure is a reason, never an exception."""
    if os.environ.get("LAPKERNELS_NO_NATIVE", "0") not in ("", "0"):
        return Native(None, "LAPKERNELS_NO_NATIVE is set")
    found = sorted(package.glob("_native*.so"))
    if not found:
        record = build_record(package) or {}
        return Native(None, record.get("reason") or "the compiled library was never built")
    try:
        torch.ops.load_library(found[0])
    except (OSError, RuntimeError) as error:
        return Native(None, f"{found[0].name} could not be loaded: {error}")
    return Native(found[0], None)


NATIVE = load()


def native_op(name: str) -> Callable[..., Any] | None:
    """The compiled op of that name, or None if the library is absent or lacks it."""
    if NATIVE.path is None:
        return None
    packet = getattr(getattr(torch.ops, NAMESPACE), name, None)
    return None if packet is None else packet.default


def simd_level() -> str | None:
    """The instruction set the kernels picked on this machine, or None without the library."""
    simd = native_op("simd")
    return None if simd is None else simd()


def why_not_cuda(device: int) -> str | None:
    """Why the CUDA kernels do not run on a device, or None: its architecture, or an old driver."""
    probe = native_op("why_not_cuda")
    if probe is None:
        return None
    with torch.cuda.device(device):
        reason = probe()
    return f"on cuda:{device}, {reason}" if reason else None


def cuda_ops() -> frozenset[str]:
    """Names of the ops that the library has CUDA kernels for; none if it was built without CUDA."""
    names = native_op("cuda_kernels")
    return frozenset() if names is None else frozenset(names().split())
