"""The launches of every Triton kernel, recorded on tensors that hold no numbers.

Each op is called on meta tensors of a reference shape, and what it would launch is kept instead:
the kernel with all its arguments, exactly as on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from lapkernels.kernels.triton import launch, triton_op
from lapkernels.kernels.triton.launch import Grid, Kernel

Make = Callable[..., Tensor]

# Multiprocessors of the device that sums are split for: an A100's.
UNITS = 108


@dataclass(frozen=True)
class Launch:
    """One kernel, the programs it is launched with, and its arguments."""

    kernel: Kernel
    grid: Grid
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        return self.kernel.function.fn.__name__.removesuffix("_kernel")

    @property
    def variant(self) -> str:
        """The name, and what tells apart instances that compute different things."""
        marks = [
            str(value)
            for name, value in self.arguments.items()
            if name in ("OP", "ACTIVATION") and value != "identity"
        ]
        marks += ["symmetric"] if self.arguments.get("SYMMETRIC") else []
        return ", ".join([self.name, *marks])


@dataclass(frozen=True)
class Shape:
    """An op on a reference shape: `call(make)` returns its arguments, what is written first.

    `name` tells apart two ways to call an op.
    """

    op: str
    label: str
    call: Callable[[Make], Sequence[Any]]
    name: str


@dataclass(frozen=True)
class Conv:
    """A convolution with square kernels, padded by half of their size."""

    label: str
    inputs: int
    outputs: int
    side: int
    kernel: int
    stride: int
    samples: int
    columns: int

    @property
    def taps(self) -> tuple[list[int], ...]:
        """kernel_size, stride, padding, dilation."""
        return [self.kernel] * 2, [self.stride] * 2, [self.kernel // 2] * 2, [1] * 2

    @property
    def input(self) -> tuple[int, ...]:
        return (self.samples, self.inputs, self.side, self.side)

    @property
    def output(self) -> tuple[int, ...]:
        size = (self.side - 1) // self.stride + 1
        return (self.samples, self.outputs, size, size)

    @property
    def weight(self) -> tuple[int, ...]:
        return (self.outputs, self.inputs, self.kernel, self.kernel)


CONVS = (
    Conv("64 to 64, 3 x 3, 32 x 32", 64, 64, 32, 3, 1, 32, 10),
    Conv("3 to 16, 3 x 3, 64 x 64", 3, 16, 64, 3, 1, 16, 10),
    Conv("128 to 256, 3 x 3 by 2, 16 x 16", 128, 256, 16, 3, 2, 64, 10),
)
# Numbers of entries for what goes over memory once.
ENTRIES = (1 << 14, 1 << 20, 1 << 24)


def _conv_shapes(conv: Conv) -> list[Shape]:
    v, n = conv.columns, conv.samples
    size, taps = list(conv.output[2:]), conv.taps
    factor, patch = conv.outputs, conv.inputs * conv.kernel**2
    into = (0.5, 2.0)

    def layer(make: Make) -> tuple[Tensor, Tensor]:
        return make(v, *conv.output), make(1, *conv.input)

    calls: dict[str, Callable[[Make], Sequence[Any]]] = {
        "squared_conv_input": lambda make: (
            make(*conv.input), *into, make(*conv.output), make(*conv.weight),
            [*conv.input[2:]], *taps[1:], 1, False, make(*conv.input), "relu", 0.0,
        ),
        "squared_conv_weight": lambda make: (
            make(*conv.weight), *into, make(1, *conv.output), make(1, *conv.input), *taps, 1, False,
        ),
        "jacobian_squared_sum": lambda make: (make(*conv.weight), *into, *layer(make), *taps, 1),
        "jacobian_squared_dot": lambda make: (
            make(n, v), *into, *layer(make), make(*conv.weight), *taps, 1,
        ),
        "jacobian_gram": lambda make: (
            make(n, v, v), *into, *layer(make), make(*conv.weight), *taps, 1,
        ),
        "kronecker_input": lambda make: (
            make(1, patch, patch), *into, make(*conv.input), size, *taps, 1, False, False, False,
        ),
        "kronecker_input, reduce": lambda make: (
            make(1, patch, patch), *into, make(*conv.input), size, *taps, 1, False, True, False,
        ),
        "kronecker_output": lambda make: (
            make(1, factor, factor), *into, make(v, *conv.output), 1, False,
        ),
    }  # fmt: skip
    return [Shape(name.partition(",")[0], conv.label, call, name) for name, call in calls.items()]


def _flat_shapes(entries: int) -> list[Shape]:
    calls: dict[str, Callable[[Make], Sequence[Any]]] = {
        "squared_derivative": lambda make: (
            make(entries), 0.0, 1.0, make(entries), make(entries), "gelu", 0.0,
        ),
        "gaussian_kl": lambda make: (make(), 0.0, 1.0, [make(entries)], [make(entries)], 0.1),
        "squared_gradient_sum": lambda make: (
            make(), 0.0, 1.0, [make(entries)], [make(entries)],
        ),
        "precision_update": lambda make: ([make(entries)], [make(entries)], 0.9, 1.0),
        "sample_from_precision": lambda make: (
            [make(entries)], [make(entries)], [make(entries)], 1.0, 1.0,
        ),
    }  # fmt: skip
    return [Shape(name, f"{entries} entries", call, name) for name, call in calls.items()]


def _transposed_shapes() -> list[Shape]:
    """What only other geometry compiles: phases of a stride, many columns, groups, offsets."""
    taps = ([4, 4], [2, 2], [1, 1], [1, 1])
    n, v, i, o, small, large = 8, 40, 32, 16, [32, 32], [64, 64]

    def layer(make: Make) -> tuple[Tensor, Tensor]:
        return make(1, n, i, *small), make(v, n, o, *large)

    def weight(make: Make) -> Tensor:
        return make(i, o // 2, 4, 4)

    patch = i // 2 * 16 + 1
    calls: dict[str, Callable[[Make], Sequence[Any]]] = {
        "squared_conv_input": lambda make: (
            make(n, i, *small), 0.0, 1.0, make(n, o, *large), weight(make),
            small, *taps[1:], 2, True, make(n, i, *small), "gelu", 0.0,
        ),
        "squared_conv_weight": lambda make: (
            weight(make), 0.0, 1.0, make(1, n, i, *small), make(1, n, o, *large), *taps, 2, True,
        ),
        "jacobian_squared_sum": lambda make: (weight(make), 0.0, 1.0, *layer(make), *taps, 2),
        "jacobian_squared_dot": lambda make: (
            make(n, v), 0.0, 1.0, *layer(make), weight(make), *taps, 2,
        ),
        "jacobian_gram": lambda make: (
            make(n, v, v), 0.0, 1.0, *layer(make), weight(make), *taps, 2,
        ),
        "kronecker_input": lambda make: (
            make(2, patch, patch), 0.0, 1.0, make(n, i, *small), large, *taps, 2, True, False, True,
        ),
        "kronecker_output": lambda make: (
            make(2, 8, 8), 0.0, 1.0, make(v, n << 16, o, *large), 2, False,
        ),
    }  # fmt: skip
    label = "transposed, 32 to 16, 4 x 4 by 2, 32 x 32"
    return [Shape(name, label, call, name) for name, call in calls.items()]


SHAPES: list[Shape] = [
    *[shape for conv in CONVS for shape in _conv_shapes(conv)],
    *[shape for entries in ENTRIES for shape in _flat_shapes(entries)],
    *_transposed_shapes(),
]


def recorded(shape: Shape, dtype: torch.dtype, hip: bool = False) -> list[Launch]:
    """What an op launches on a reference shape, on an NVIDIA or an AMD device."""
    found: list[Launch] = []

    def record(kernel: Kernel, grid: Grid, **arguments: Any) -> None:
        found.append(Launch(kernel, grid, arguments))

    def make(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    run = triton_op(shape.op)
    assert run is not None
    with (
        mock.patch.object(Kernel, "launch", record),
        mock.patch.object(launch, "units", lambda device: UNITS),
        mock.patch.object(torch.version, "hip", "6.0" if hip else None),
    ):
        run(*shape.call(make))
    return found
