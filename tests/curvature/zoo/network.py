"""What an entry of the zoo is, and short words to write one."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tests.curvature.oracle import Inputs, Select

Kind = Literal["vector", "sequence", "image"]
# A layer and the size of its images, with the number of its channels if that is not two.
Sized = (
    tuple[Callable[[], nn.Module], tuple[int, ...]]
    | (tuple[Callable[[], nn.Module], tuple[int, ...], int])
)
Owned = tuple[int, int] | list[int] | Callable[[], nn.Module | nn.Parameter | Tensor]
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Network:
    """A small model with inputs: a shape without the sample dimension, or a function of N.

    `kind` is the shape of an output: [N, C], [N, T, C] or [N, C, H, W].
    """

    id: str
    build: Callable[[], nn.Module]
    inputs: tuple[int, ...] | Callable[[int], Inputs]
    kind: Kind = "vector"
    output: Select | None = None
    samples: int = 3
    group: str = ""

    def make(
        self, dtype: torch.dtype = torch.float64, samples: int | None = None
    ) -> tuple[nn.Module, Inputs]:
        """The model in eval mode and a batch, the same on every call."""
        count = self.samples if samples is None else samples
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.id.encode()))
            model = self.build().eval().to(dtype)
            _spread(model)
            if callable(self.inputs):
                x = self.inputs(count)
            else:
                x = torch.randn(count, *self.inputs, dtype=torch.float64)
        if isinstance(x, dict):
            return model, {name: _cast(value, dtype) for name, value in x.items()}
        if isinstance(x, tuple):
            return model, tuple(_cast(value, dtype) for value in x)
        return model, _cast(x, dtype)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if floating else value


def _spread(model: nn.Module) -> None:
    """Moves parameters and statistics away from ones and zeros, which hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
        for name, buffer in model.named_buffers():
            noise = torch.randn(buffer.shape, dtype=torch.float64)
            if name.endswith("running_mean"):
                buffer.add_(0.5 * noise)
            elif name.endswith("running_var"):
                buffer.mul_((0.3 * noise).exp())


class Net(nn.Module):
    """A model from its forward, `function(net, *inputs)`, and what it owns by name."""

    def __init__(
        self, function: Callable[..., Any], **owned: nn.Module | nn.Parameter | Tensor
    ) -> None:
        super().__init__()
        self.function = function
        for name, value in owned.items():
            if isinstance(value, nn.Module | nn.Parameter):
                setattr(self, name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(self, *inputs, **named)


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def parameter(*shape: int) -> nn.Parameter:
    """A learned tensor of random numbers."""
    return nn.Parameter(torch.randn(shape))


def between(
    middle: Callable[[], nn.Module], *size: int, channels: int = 2, inputs: int = 1
) -> Callable[[], nn.Module]:
    """Convolution, `middle`, a linear layer on all that comes out of it."""

    def build() -> nn.Module:
        front = CONVS[len(size) - 1](inputs, channels, 3 if len(size) < 3 else 2, padding=1)
        layer = middle().eval()
        features = layer(front(torch.randn(1, inputs, *size))).numel()
        return nn.Sequential(front, layer, nn.Flatten(), nn.Linear(features, 2))

    return build


def between_linear(
    middle: Callable[[], nn.Module], features: int = 4, inputs: int = 3
) -> Callable[[], nn.Module]:
    """Linear, `middle`, linear, at one position."""

    def build() -> nn.Module:
        layer = middle().eval()
        width = layer(torch.randn(1, features)).shape[1]
        return nn.Sequential(nn.Linear(inputs, features), layer, nn.Linear(width, 2))

    return build


def sized(table: Mapping[str, Sized], prefix: str = "") -> list[Network]:
    """Layers `between` others, by id with the size of an image and perhaps a number of channels."""
    return [
        Network(prefix + id, between(layer, *size, channels=(*channels, 2)[0]), (1, *size))
        for id, (layer, size, *channels) in table.items()
    ]


def owning(
    id: str,
    function: Callable[..., Any],
    owned: Mapping[str, Owned],
    inputs: tuple[int, ...] | Callable[[int], Inputs],
    kind: Kind = "vector",
    **options: Any,
) -> Network:
    """A `Net`; of what it owns, a pair is a linear layer's sizes, a list a parameter's shape."""

    def made(one: Owned) -> nn.Module | nn.Parameter | Tensor:
        if isinstance(one, list):
            return parameter(*one)
        return nn.Linear(one[0], one[1]) if isinstance(one, tuple) else one()

    def build() -> nn.Module:
        return Net(function, **{name: made(one) for name, one in owned.items()})

    return Network(id, build, inputs, kind, **options)


def grouped(group: str, networks: list[Network]) -> list[Network]:
    """The same networks, with the name of what they test."""
    for network in networks:
        object.__setattr__(network, "group", group)
    return networks
