"""The geometry of a layer: Linear, ConvNd and ConvTransposeNd in one description.

Every layer is seen as a correlation between a tensor on a small grid and one on a large grid,

    G[a, b, k] = sum_t small[a, t] * large[b, t * stride - padding + k * dilation],

with the weight laid out as [a, b / groups, k]. In a convolution the output lives on the small grid
and the input on the large one; in a transposed convolution it is the other way round. A Linear
layer is a convolution whose kernel has one tap, over any number of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, wraps
from typing import Literal, ParamSpec, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
PADDING_MODES: tuple[PaddingMode, ...] = ("zeros", "reflect", "replicate", "circular")


_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


@dataclass(frozen=True)
class Geometry:
    """Kernel taps of a layer, and where they fall on its input.

    ``padding`` holds one (before, after) pair a dimension. A Linear layer has no dimensions: its
    tensors keep their features last, ``x`` [N, ..., I], where a convolution has [N, I, ...];
    ``is_linear`` tells. ``arguments`` is (stride, padding before, dilation, groups) as the
    registered ops take them, with one tap over one dimension for a Linear layer; read-only.
    """

    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    padding_mode: PaddingMode = "zeros"
    output_padding: tuple[int, ...] = ()
    is_linear: bool = field(init=False, repr=False, compare=False)
    arguments: tuple[list[int], list[int], list[int], int] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        dims = len(self.kernel_size)
        for name in ("stride", "padding", "dilation", "output_padding"):
            if len(getattr(self, name)) != dims:
                raise ValueError(f"{name}={getattr(self, name)} must have {dims} entries")
        for name in ("kernel_size", "stride", "dilation"):
            if any(value < 1 for value in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if any(side < 0 for pair in self.padding for side in pair):
            raise ValueError(f"padding={self.padding} must not be negative")
        if any(extra < 0 for extra in self.output_padding):
            raise ValueError(f"output_padding={self.output_padding} must not be negative")
        if self.groups < 1:
            raise ValueError(f"groups={self.groups} must be positive")
        if dims > 3:
            raise ValueError(f"kernel_size={self.kernel_size} must have at most 3 dimensions")
        if self.padding_mode not in PADDING_MODES:
            raise ValueError(f"padding_mode={self.padding_mode!r} must be one of {PADDING_MODES}")
        if self.transposed and self.padding_mode != "zeros":
            raise ValueError("a transposed convolution has padding_mode 'zeros' only")
        if not self.transposed and any(self.output_padding):
            raise ValueError(f"output_padding={self.output_padding} is for transposed layers")
        # Set here: before Python 3.12 a cached property holds a lock, which breaks a compiled
        # graph.
        before = [pair[0] for pair in self.padding]
        taps = (list(self.stride), before, list(self.dilation), self.groups)
        object.__setattr__(self, "arguments", taps if dims else ([1], [0], [1], 1))
        object.__setattr__(self, "is_linear", dims == 0)

    @classmethod
    def conv(
        cls,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | str | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        padding_mode: PaddingMode = "zeros",
        dims: int = 2,
        transposed: bool = False,
        output_padding: int | tuple[int, ...] = 0,
    ) -> Geometry:
        """Geometry from the arguments of ``nn.ConvNd``; an int means ``dims`` equal entries."""
        kernel = _repeat(kernel_size, dims)
        steps, spread = _repeat(stride, len(kernel)), _repeat(dilation, len(kernel))
        if isinstance(padding, str):
            pairs = _named_padding(padding, kernel, steps, spread)
        else:
            pairs = tuple((side, side) for side in _repeat(padding, len(kernel)))
        extra = _repeat(output_padding, len(kernel))
        return cls(kernel, steps, pairs, spread, groups, transposed, padding_mode, extra)

    @classmethod
    def of(cls, module: nn.Module) -> Geometry:
        """Geometry of a Linear, Conv1d/2d/3d or ConvTranspose1d/2d/3d module."""
        if isinstance(module, nn.Linear):
            return cls()
        if isinstance(module, _CONVOLUTIONS):
            return cls.conv(
                cast(tuple[int, ...], module.kernel_size),
                cast(tuple[int, ...], module.stride),
                cast("str | tuple[int, ...]", module.padding),
                cast(tuple[int, ...], module.dilation),
                module.groups,
                cast(PaddingMode, module.padding_mode),
                transposed=module.transposed,
                output_padding=cast(tuple[int, ...], module.output_padding),
            )
        raise TypeError(
            f"{type(module).__name__} is not a Linear, Conv1d/2d/3d or ConvTranspose1d/2d/3d"
        )

    def output_size(self, input_size: tuple[int, ...]) -> tuple[int, ...]:
        """Spatial size of the layer's output for a spatial ``input_size``."""
        sizes = []
        for d, size in enumerate(input_size):
            reach = self.dilation[d] * (self.kernel_size[d] - 1) + 1
            pad = sum(self.padding[d])
            if self.transposed:
                length = (size - 1) * self.stride[d] - pad + reach + self.output_padding[d]
            else:
                length = (size + pad - reach) // self.stride[d] + 1
            sizes.append(length)
        return tuple(sizes)

    def check_pair(self, input_size: tuple[int, ...], output_size: tuple[int, ...]) -> None:
        """Raise unless this layer maps ``input_size`` to ``output_size``."""
        if self.is_linear:
            if input_size != output_size:
                raise ValueError(
                    f"positions of input {input_size} and output {output_size} must be equal"
                )
        elif len(input_size) != len(self.kernel_size):
            raise ValueError(
                f"input of spatial size {input_size}: {len(self.kernel_size)} numbers are needed"
            )
        elif self.output_size(input_size) != output_size:
            raise ValueError(
                f"output of spatial size {output_size} does not belong to an input of "
                f"{input_size}: this layer makes {self.output_size(input_size)}"
            )

    def without_padding(self) -> Geometry:
        """The same layer on an already padded input."""
        none = tuple((0, 0) for _ in self.kernel_size)
        return replace(self, padding=none, padding_mode="zeros")

    @property
    def taps(self) -> list[int]:
        """The kernel's size as the registered ops take it: one tap for a Linear layer."""
        return list(self.kernel_size) or [1]

    @cached_property
    def _hash(self) -> int:
        fields = (self.kernel_size, self.stride, self.padding, self.dilation, self.output_padding)
        return hash((*fields, self.groups, self.transposed, self.padding_mode))

    def __hash__(self) -> int:
        return self._hash


P = ParamSpec("P")
R = TypeVar("R")


def once_per_size(check: Callable[P, R]) -> Callable[P, R]:
    """Cache a function of sizes and geometry: checks dominate the cost of a small op.

    Symbolic sizes of a traced program are not cached.
    """
    kept = lru_cache(maxsize=1024)(check)

    @wraps(check)
    def look_up(*sizes: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return check(*sizes, **options)
        try:
            return kept(*sizes, **options)
        except TypeError:  # a symbolic size has no hash
            return check(*sizes, **options)

    return look_up


def channels_first(tensor: Tensor, geometry: Geometry, leading: int) -> Tensor:
    """View with the channels right after ``leading`` dimensions, and one to three spatial ones.

    For a Linear layer [.., positions.., features] becomes [.., features, T], T = 1 with no
    positions; nothing is copied unless the positions cannot be seen as one dimension.
    """
    if not geometry.is_linear:
        return tensor
    positions = tensor.shape[leading:-1]
    if not positions:
        return tensor.unsqueeze(-1)
    if len(positions) > 1:
        count = positions.numel()
        tensor = tensor.reshape(*tensor.shape[:leading], count, tensor.shape[-1])
    return tensor.transpose(leading, leading + 1)


def spatial_size(shape: torch.Size, geometry: Geometry, leading: int) -> tuple[int, ...]:
    """Positions of a Linear layer's tensor, or spatial size of a convolution's."""
    return tuple(shape[leading:-1] if geometry.is_linear else shape[leading + 1 :])


def channel_count(shape: torch.Size, geometry: Geometry, leading: int) -> int:
    """Features of a Linear layer's tensor, or channels of a convolution's."""
    return shape[-1] if geometry.is_linear else shape[leading]


def pad_input(x: Tensor, geometry: Geometry) -> tuple[Tensor, Geometry]:
    """Apply a padding mode other than zeros to ``x``; kernels pad with zeros only."""
    if geometry.padding_mode == "zeros":
        return x, geometry
    sides = [side for pair in reversed(geometry.padding) for side in pair]
    return F.pad(x, sides, mode=geometry.padding_mode), geometry.without_padding()


def is_pointwise(
    kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], groups: int
) -> bool:
    """Whether a layer is one matrix product on each position: Linear and 1 x 1 kernels."""
    return groups == 1 and max(kernel_size) == 1 == max(stride) and not any(padding)


def check_real(name: str, tensor: Tensor) -> None:
    """Raise unless ``tensor`` has a real dtype."""
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype}: a real floating dtype is needed")


def check_rank(name: str, shape: torch.Size, geometry: Geometry, leading: int) -> None:
    """Raise unless a tensor of this shape has the geometry's dimensions."""
    dims = len(geometry.kernel_size)
    wanted = leading + 1 + dims
    if geometry.is_linear:
        if len(shape) < wanted:
            raise ValueError(f"{name} has shape {tuple(shape)}: at least {wanted} dims needed")
    elif len(shape) != wanted:
        raise ValueError(
            f"{name} has shape {tuple(shape)}: {wanted} dimensions are needed for a "
            f"{dims}-dimensional kernel"
        )


def check_same(reference: str, tensor: Tensor, **others: Tensor | None) -> None:
    """Raise unless all tensors share dtype and device; names are used in the message."""
    for name, other in others.items():
        if other is None:
            continue
        if other.dtype != tensor.dtype:
            raise TypeError(f"{name} has dtype {other.dtype}, but {reference} has {tensor.dtype}")
        # Reading a tensor's device makes a new object.
        if not (other.is_cpu and tensor.is_cpu) and other.device != tensor.device:
            raise ValueError(f"{name} is on {other.device}, but {reference} is on {tensor.device}")


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...] | torch.Size) -> None:
    """Raise unless ``tensor`` has exactly this shape."""
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: {tuple(shape)} is needed")


def check_groups(channels: int, name: str, groups: int) -> None:
    """Raise unless the channels split evenly into the groups."""
    if channels % groups:
        raise ValueError(f"{name} has {channels} channels, not a multiple of groups={groups}")


def _repeat(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value)


def _named_padding(
    name: str, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """'valid' is zero; 'same' keeps the size, with the odd one at the end, as in torch."""
    if name == "valid":
        return tuple((0, 0) for _ in kernel)
    if name != "same":
        raise ValueError(f"padding={name!r} must be 'same', 'valid' or numbers")
    if any(step != 1 for step in stride):
        raise ValueError(f"padding='same' needs stride 1, not {stride}")
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)
