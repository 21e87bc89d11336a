"""Networks whose memory is measured, each at a size where one kind of tensor is the most of it."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import torch
from torch import Tensor, nn

from tests.curvature.zoo.network import Net

Built = tuple[nn.Module, Tensor]


def images(outputs: int, small: bool) -> Built:
    """Few parameters, large images."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, outputs)),
    )
    size, batch = (32, 2) if small else (256, 6)
    return model, torch.randn(batch, 1, size, size)


def matrices(outputs: int, small: bool) -> Built:
    """Few activations, large matrices."""
    width = 128 if small else 2048
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip
    return model, torch.randn(4, width)


def matrix(outputs: int, small: bool) -> Built:
    """One layer, of which a vector of its size is the most of everything."""
    width = 16 if small else 1024
    return nn.Sequential(nn.Linear(width, outputs)), torch.randn(4, width)


def tied(outputs: int, small: bool) -> Built:
    """Few activations, a large matrix that is used twice, so that its Jacobians are added up."""
    width = 64 if small else 1536
    model = Net(
        lambda net, x: net.head(net.body(net.body(x).tanh()).tanh()),
        body=nn.Linear(width, width),
        head=nn.Linear(width, outputs),
    )
    return model, torch.randn(4, width)


class Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.project, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(self.before(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.back(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.widen(self.between(x))))


def sequence(outputs: int, small: bool) -> Built:
    """Many positions that share small matrices: tokens, two blocks, the mean over positions."""
    batch, length = (2, 16) if small else (28, 128)
    model = Net(
        lambda net, index: net.head(net.blocks(net.embed(index)).mean(1)),
        embed=nn.Embedding(500, 64),
        blocks=nn.Sequential(Attention(64, 4), Attention(64, 4)),
        head=nn.Linear(64, outputs),
    )
    return model, torch.randint(500, (batch, length))


class Skips(nn.Module):
    """A U-Net of two levels: an image again, or classes."""

    def __init__(self, outputs: int, pixels: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.low = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2)
        self.joined = nn.Conv2d(24, 8, 3, padding=1)
        last = nn.Conv2d(8, outputs, 1) if pixels else nn.Linear(8, outputs)
        self.pixels, self.last = pixels, last

    def forward(self, x: Tensor) -> Tensor:
        high = self.first(x).relu()
        low = self.up(self.low(nn.functional.max_pool2d(high, 2)).relu())
        both = high + self.joined(torch.cat([high, low], 1)).relu()
        return self.last(both if self.pixels else both.mean((2, 3)))


def skips(outputs: int, small: bool) -> Built:
    """Values that wait for each other."""
    size, batch = (16, 2) if small else (128, 8)
    return Skips(outputs, False), torch.randn(batch, 1, size, size)


def unet(outputs: int, small: bool) -> Built:
    """An output for every pixel, with skips."""
    size = 8 if small else isqrt(outputs)
    return Skips(1, True), torch.randn(2 if small else 96, 1, size, size)


def decoder(outputs: int, small: bool) -> Built:
    """An output for every pixel, each with a small receptive field."""
    size = 8 if small else isqrt(outputs)
    model = nn.Sequential(
        nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
    )  # fmt: skip
    return model, torch.randn(2 if small else 144, 4, size, size)


NETWORKS: dict[str, Callable[[int, bool], Built]] = {
    "images": images,
    "matrices": matrices,
    "matrix": matrix,
    "tied": tied,
    "sequence": sequence,
    "skips": skips,
    "unet": unet,
    "decoder": decoder,
}
