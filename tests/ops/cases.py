"""The layers every op is tested on, and the tensors drawn for them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lapkernels.ops import Geometry

KINDS: dict[str, type[nn.Module]] = {
    "linear": nn.Linear,
    "conv1d": nn.Conv1d,
    "conv2d": nn.Conv2d,
    "conv3d": nn.Conv3d,
    "conv_transpose1d": nn.ConvTranspose1d,
    "conv_transpose2d": nn.ConvTranspose2d,
    "conv_transpose3d": nn.ConvTranspose3d,
}

# Non-zero products in a sum over positions, and parameters with a variance, that keep sums of
# integers within float32's reach.
_EXACT_PRODUCTS = 64
_EXACT_PARAMETERS = 256


@dataclass(frozen=True)
class Layer:
    """One layer and the sizes it is tried at; `size` is spatial, or a Linear layer's positions."""

    kind: str
    channels: tuple[int, int]
    size: tuple[int, ...] = ()
    samples: int = 3
    columns: int = 2
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def id(self) -> str:
        words = [self.kind, f"{self.channels[0]}to{self.channels[1]}"]
        words += ["x".join(map(str, self.size))] if self.size else []
        words += [f"{name}={value}".replace(" ", "") for name, value in self.options]
        return "-".join([*words, f"N{self.samples}", f"V{self.columns}"])

    @property
    def is_linear(self) -> bool:
        return self.kind == "linear"

    @property
    def is_transposed(self) -> bool:
        return "transpose" in self.kind

    @property
    def groups(self) -> int:
        return dict(self.options).get("groups", 1)

    def module(self, outputs: int | None = None, dtype: torch.dtype = torch.float64) -> Any:
        """The real module, with a bias; `outputs` replaces its number of output channels."""
        inputs, own = self.channels
        return KINDS[self.kind](inputs, outputs or own, **dict(self.options), dtype=dtype)

    @cached_property
    def geometry(self) -> Geometry:
        return Geometry.of(self.module())

    def input_shape(self, samples: int) -> tuple[int, ...]:
        channels = self.channels[0]
        if self.is_linear:
            return (samples, *self.size, channels)
        return (samples, channels, *self.size)

    @cached_property
    def _sample_output(self) -> tuple[int, ...]:
        """By running the module on the meta device, which holds no numbers."""
        entry = torch.empty(self.input_shape(1), device="meta", dtype=torch.float64)
        return tuple(self.module().to("meta")(entry).shape[1:])

    def output_shape(self, samples: int) -> tuple[int, ...]:
        return (samples, *self._sample_output)

    @property
    def positions(self) -> int:
        """The length of the sum in G: positions of the grid that the weight's first index is on."""
        if self.is_transposed or self.is_linear:
            return prod(self.size)
        return prod(self.output_shape(1)[2:])


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Tensors for one layer; `variance` is shaped as the weight, `z` as the input."""

    layer: Layer
    x: Tensor
    s: Tensor
    m: Tensor
    z: Tensor
    weight: Tensor
    variance: Tensor
    bias_variance: Tensor

    def map(self, change: Callable[[Tensor], Tensor], *names: str) -> Data:
        """The same with the tensors called `names`, or all, changed."""
        chosen = names or [field.name for field in fields(self) if field.name != "layer"]
        return replace(self, **{name: change(getattr(self, name)) for name in chosen})

    def samples(self, index: Any) -> Data:
        """A part of the batch, or the batch in another order."""
        return replace(self.map(lambda t: t[index], "x", "m", "z"), s=self.s[:, index])

    @property
    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self) if field.name != "layer"]


@lru_cache(maxsize=8)
def draw(layer: Layer, dtype: torch.dtype = torch.float64, integers: bool = False) -> Data:
    """Normal numbers, or integers in [-2, 2] sparse enough for float32 to hold every partial sum.

    The result is shared between tests, so none may write into it.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(layer.id.encode()))
    density = min(1.0, (_EXACT_PRODUCTS / max(1, layer.positions)) ** 0.5)

    def numbers(shape: Sequence[int], keep: float = 1.0, low: int = -2) -> Tensor:
        if not integers:
            value = torch.randn(tuple(shape), dtype=dtype, generator=generator)
            return value if low < 0 else value.abs() + 0.1
        value = torch.randint(low, 3, tuple(shape), generator=generator)
        kept = torch.rand(tuple(shape), generator=generator) < keep
        value *= kept
        value.flatten()[:1] = 2  # no tensor is all zero
        return value.to(dtype)

    output = layer.output_shape(layer.samples)
    weight = layer.module().weight
    return Data(
        layer,
        x=numbers(layer.input_shape(layer.samples), density),
        s=numbers((layer.columns, *output), density),
        m=numbers(output),
        z=numbers(layer.input_shape(layer.samples)),
        weight=numbers(weight.shape),
        variance=numbers(weight.shape, min(1.0, _EXACT_PARAMETERS / weight.numel()), low=0),
        bias_variance=numbers(layer.channels[1:], low=1),
    )


def layer_of(
    kind: str, inputs: int, outputs: int, *size: int, n: int = 3, v: int = 2, **options: Any
) -> Layer:
    """A layer from the words of its module."""
    return Layer(kind, (inputs, outputs), size, n, v, tuple(options.items()))


# Small ones first: properties that do not depend on the size are tried on these alone.
FEW: list[Layer] = [
    layer_of("linear", 5, 7),
    layer_of("linear", 7, 5, 3, 4),
    layer_of("conv1d", 4, 6, 11, kernel_size=3, stride=2, padding=1, groups=2),
    layer_of("conv2d", 3, 5, 9, 7, kernel_size=3, padding=1),
    layer_of("conv2d", 2, 3, 6, 5, kernel_size=3, padding=2, padding_mode="reflect"),
    layer_of("conv3d", 2, 3, 5, 4, 6, kernel_size=(3, 2, 3), padding=1),
    layer_of("conv_transpose2d", 4, 6, 5, 6, kernel_size=3, stride=2, padding=1, output_padding=1),
    layer_of("conv_transpose3d", 2, 4, 3, 4, 2, kernel_size=2, stride=2, groups=2),
]

LAYERS: list[Layer] = [
    *FEW,
    layer_of("linear", 1, 1, n=1, v=1),
    layer_of("linear", 33, 17, v=9),
    layer_of("linear", 16, 8, n=70),
    layer_of("linear", 4, 3, 6),
    layer_of("linear", 8, 16, 4, v=9),  # fewer positions than columns
    layer_of("linear", 3, 2, 300, n=1),
    layer_of("conv1d", 3, 5, 11, kernel_size=3),
    layer_of("conv1d", 2, 3, 40, kernel_size=19, padding=9),
    layer_of("conv1d", 4, 4, 9, kernel_size=4, padding="same"),
    layer_of("conv1d", 5, 7, 6, kernel_size=6, v=9),  # one position
    layer_of("conv1d", 3, 4, 23, kernel_size=4, stride=3, padding=2, dilation=2),
    layer_of("conv1d", 2, 2, 7, kernel_size=5, padding=7, padding_mode="circular"),
    layer_of("conv1d", 1, 2, 4001, n=1, kernel_size=5, padding=2),
    layer_of("conv2d", 16, 17, 5, 5, kernel_size=1),
    layer_of("conv2d", 8, 8, 8, 8, kernel_size=3, padding=1, v=1),
    layer_of("conv2d", 1, 33, 7, 9, kernel_size=3),
    layer_of("conv2d", 33, 1, 7, 5, kernel_size=3, n=1),
    layer_of("conv2d", 3, 8, 10, 11, kernel_size=3, stride=(2, 3)),  # rows no kernel reaches
    layer_of("conv2d", 2, 4, 11, 9, kernel_size=(3, 2), dilation=(2, 3), padding=(1, 2)),
    layer_of("conv2d", 4, 6, 7, 6, kernel_size=3, padding=1, groups=2),
    layer_of("conv2d", 5, 5, 7, 7, kernel_size=3, padding=1, groups=5),
    layer_of("conv2d", 3, 6, 6, 7, kernel_size=3, stride=2, padding=1, groups=3),
    layer_of("conv2d", 3, 4, 6, 5, kernel_size=(2, 4), padding="same", dilation=(1, 2)),
    layer_of("conv2d", 2, 3, 5, 4, kernel_size=7, padding=3),  # kernel larger than the input
    layer_of("conv2d", 2, 3, 4, 5, kernel_size=2, padding=3),  # outputs that see padding only
    layer_of("conv2d", 2, 3, 5, 20, kernel_size=(3, 17), padding=(1, 8)),
    layer_of("conv2d", 3, 5, 4, 4, kernel_size=4, v=9),  # one position
    layer_of("conv2d", 4, 7, 4, 4, kernel_size=3, v=9),  # fewer positions than columns
    layer_of("conv2d", 2, 4, 6, 7, kernel_size=3, padding=2, groups=2, padding_mode="replicate"),
    layer_of("conv2d", 3, 2, 5, 6, kernel_size=(3, 4), padding="same", padding_mode="circular"),
    layer_of(
        "conv2d", 2, 2, 7, 8, kernel_size=3, stride=2, dilation=2, padding=4, padding_mode="reflect"
    ),
    layer_of("conv2d", 17, 33, 40, 40, n=1, kernel_size=3, padding=1),
    layer_of(
        "conv2d", 33, 26, 9, 6, n=2, kernel_size=3, padding=1, v=3
    ),  # tiles of three positions
    layer_of("conv2d", 2, 3, 70, 57, n=1, kernel_size=3, padding=1),
    layer_of("conv2d", 3, 9, 31, 28, n=2, kernel_size=5, v=9),
    layer_of("conv2d", 3, 41, 21, 16, n=2, kernel_size=5, v=3),
    layer_of("conv2d", 6, 112, 9, 26, n=2, kernel_size=5, padding=2, groups=2),
    layer_of("conv2d", 20, 17, 13, 10, n=2, kernel_size=5, padding=2),
    layer_of("conv2d", 2, 6, 60, 68, n=1, kernel_size=5, padding=1, groups=2),
    layer_of("conv3d", 4, 4, 5, 5, 4, kernel_size=3, stride=2, padding=1, groups=2),
    layer_of("conv3d", 2, 2, 3, 4, 3, kernel_size=(2, 3, 2), padding="same"),
    layer_of("conv3d", 1, 2, 3, 4, 3, kernel_size=3, padding=1, padding_mode="circular"),
    layer_of("conv_transpose1d", 3, 5, 9, kernel_size=4, stride=2, padding=1),
    layer_of("conv_transpose1d", 2, 3, 7, kernel_size=3, stride=3, output_padding=2),
    layer_of("conv_transpose1d", 4, 2, 8, kernel_size=3, stride=2, dilation=3, padding=2),
    layer_of("conv_transpose1d", 2, 1, 2000, n=1, kernel_size=4, stride=2, padding=1),
    layer_of("conv_transpose2d", 3, 5, 5, 4, kernel_size=3),
    layer_of("conv_transpose2d", 7, 4, 1, 1, kernel_size=4, v=9),  # one position
    layer_of("conv_transpose2d", 8, 3, 2, 2, kernel_size=3, stride=2, v=9),
    layer_of("conv_transpose2d", 5, 5, 4, 5, kernel_size=3, stride=2, padding=1, groups=5),
    layer_of("conv_transpose2d", 3, 4, 4, 3, kernel_size=1, stride=2, output_padding=1),
    layer_of(
        "conv_transpose2d", 2, 3, 6, 5, kernel_size=2, padding=2
    ),  # crops what the kernel makes
    layer_of("conv_transpose2d", 16, 8, 20, 20, n=1, kernel_size=4, stride=2, padding=1),
    layer_of("conv_transpose3d", 3, 2, 3, 3, 2, kernel_size=(2, 3, 2), stride=(1, 2, 2), padding=1),
]

# Every number of samples with every number of columns.
SIZES: list[Layer] = [
    replace(layer, samples=n, columns=v)
    for layer in (FEW[1], FEW[3], FEW[6])
    for n in (0, 1, 3)
    for v in (1, 2, 9)
]


def over(layers: Sequence[Layer]) -> Any:
    """Decorates a test so that it runs on each of the layers."""
    assert layers, "no case would run"
    return pytest.mark.parametrize("layer", layers, ids=[layer.id for layer in layers])
