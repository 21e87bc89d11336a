"""Triton kernels compiled ahead of time for devices that need not be here, and what they take."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.triton.instances import Launch
from lapkernels.kernels.triton.launch import OPTIONS, Tile, is_tf32

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

_POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
}


@dataclass(frozen=True)
class Resources:
    """Registers of a thread, spilled bytes or registers, and bytes of memory a block shares."""

    registers: int
    spills: int
    shared: int


def compile_launch(launch: Launch, tile: Tile, target: str) -> Resources:
    """Compiles a recorded launch with one of its tiles, specialised as it would be on a device."""
    arguments = {**launch.arguments, **tile.constants}
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(launch.kernel.function.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
        else:
            signature[parameter.name] = _described(value, (index,), constants, attributes)
    source = ASTSource(launch.kernel.function, signature, constants, attributes)
    options = {**OPTIONS, **tile.options(is_tf32(arguments))}
    if target.startswith("gfx"):
        options.pop("maxnreg", None)
    found = triton.compile(source, target=TARGETS[target], options=options)
    if target.startswith("gfx"):
        return _amd(found.asm["amdgcn"], found.metadata.shared)
    return _nvidia(found.asm["cubin"], found.metadata.shared)


def _described(value: Any, path: tuple[int, ...], constants: Any, attributes: Any) -> Any:
    """The type of an argument; ones become constants, multiples of 16 are noted, as in a call."""
    if isinstance(value, tuple):
        children = [
            _described(child, (*path, index), constants, attributes)
            for index, child in enumerate(value)
        ]
        return type(value)(*children) if hasattr(value, "_fields") else tuple(children)
    if isinstance(value, Tensor):
        attributes[path] = [["tt.divisibility", 16]]
        return _POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp64"
    if value == 1:
        constants[path] = 1
        return "constexpr"
    if value % 16 == 0:
        attributes[path] = [["tt.divisibility", 16]]
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _nvidia(cubin: bytes, shared: int) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    usage = {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", report)}
    return Resources(usage["REG"], usage["STACK"] + usage["LOCAL"], shared)


def _amd(assembly: str, shared: int) -> Resources:
    def entry(name: str) -> int:
        (number,) = re.findall(rf"\.{name}:\s+(\d+)", assembly)
        return int(number)

    # Scalar registers are spilled to vector registers, which costs no memory.
    return Resources(entry("vgpr_count"), entry("vgpr_spill_count"), shared)
