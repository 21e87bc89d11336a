r"""m \varphi'(z)^2, elementwise and memory-bound: two numbers read and one written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton.activation import squared_slope
from lapkernels.kernels.triton.launch import TYPES, Kernel, Tile
from lapkernels.kernels.triton.operands import index_type, sum_dtype
from lapkernels.kernels.triton.sums import accumulate, fp64, scalar


@triton.jit
def squared_derivative_kernel(
    m,
    z,
    out,
    decay: fp64,
    scale: fp64,
    slope: fp64,
    entries,
    ACTIVATION: tl.constexpr,
    KEEP: tl.constexpr,
    SUM: tl.constexpr,
    INDEX: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """Grid: blocks of entries."""
    entry = tl.program_id(0).to(INDEX) * ENTRIES + tl.arange(0, ENTRIES).to(INDEX)
    inside = entry < entries
    value = tl.load(m + entry, mask=inside, other=0.0).to(SUM)
    at = tl.load(z + entry, mask=inside, other=0.0).to(SUM)
    value *= squared_slope(at, scalar(slope, SUM), ACTIVATION)
    accumulate(out + entry, value, decay, scale, inside, KEEP, SUM)


_TILES = (
    Tile({"ENTRIES": 1024}, 4, 1),
    Tile({"ENTRIES": 2048}, 8, 1),
    Tile({"ENTRIES": 512}, 4, 1),
)

SQUARED_DERIVATIVE = Kernel(
    squared_derivative_kernel,
    key=("ACTIVATION",),
    nvidia=_TILES,
    amd=_TILES,
    interpreter={"ENTRIES": 8192},
    rewrites=("out",),
)


def squared_derivative(
    out: Tensor, decay: float, scale: float, m: Tensor, z: Tensor, activation: str, slope: float
) -> None:
    """out <- decay * out + scale * m phi'(z)²; arguments as the registered op's.

    Dense tensors of the same strides are traversed in memory order; others are copied first.
    """
    alike = m.stride() == z.stride() == out.stride() and _is_dense(m)
    target = (
        out
        if alike or out.is_contiguous()
        else torch.empty_like(out, memory_format=torch.contiguous_format)
    )
    if not alike:
        m, z = m.contiguous(), z.contiguous()
    direct = target is out
    SQUARED_DERIVATIVE.launch(
        lambda constants: (triton.cdiv(m.numel(), constants["ENTRIES"]),),
        m=m,
        z=z,
        out=target,
        decay=decay if direct else 0.0,
        scale=scale if direct else 1.0,
        slope=slope,
        entries=m.numel(),
        ACTIVATION=activation,
        KEEP=direct and decay != 0.0,
        SUM=TYPES[sum_dtype(m.dtype)],
        INDEX=index_type(m, z, target),
    )
    if not direct:
        kept = out * decay if decay != 0.0 else 0.0
        out.copy_(kept + target * scale)


def _is_dense(tensor: Tensor) -> bool:
    """Whether entries are dense in memory, in any order of dimensions."""
    reach = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step != reach:
            return False
        reach *= size
    return True
