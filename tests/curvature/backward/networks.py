"""Networks that take every route of the planner, with the shape of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tests.curvature.backward.test_windows import Excited, Halves, Residual, UNet
from tests.curvature.zoo.network import Apply, Net


class Cube(torch.autograd.Function):
    """An op whose derivative only autograd knows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x.square() * grads[0]


def tied() -> nn.Module:
    return Net(
        lambda net, x: net.head(net.layer(net.layer(x).tanh()).tanh()),
        layer=nn.Linear(6, 6),
        head=nn.Linear(6, 3),
    )


def dense(*widths: int, activation: type[nn.Module] = nn.Tanh) -> list[nn.Module]:
    """Linear layers of these widths with activations between them."""
    pairs = pairwise(widths)
    return [layer for a, b in pairs for layer in (nn.Linear(a, b), activation())][:-1]


def images(*channels: int) -> Sequence[nn.Module]:
    pairs = pairwise(channels)
    return [layer for a, b in pairs for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())][:-1]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "shared": (lambda: nn.Sequential(*dense(6, 9, 7, 8)), (4, 6)),
    "bottleneck": (lambda: nn.Sequential(*dense(64, 32, 2, 32, 64)), (8, 64)),
    "unflattened": (lambda: nn.Sequential(*dense(36, 20, 3, 20, 36), nn.Unflatten(1, (1, 6, 6))),
        (4, 36)),
    "image": (lambda: nn.Sequential(*images(1, 4, 4, 2)), (2, 1, 24, 24)),
    "small image": (lambda: nn.Sequential(*images(1, 2, 2)), (2, 1, 3, 3)),
    "pooled": (lambda: nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(3, 2, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)),
            nn.Conv2d(2, 1, 3, padding=1)), (2, 1, 6, 4)),
    "autoencoder": (lambda: nn.Sequential(
            *(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2), nn.Tanh()),
            *(nn.Linear(2, 32), nn.Unflatten(1, (2, 4, 4)), nn.ReLU()),
            *(nn.ConvTranspose2d(2, 2, 2, stride=2), nn.Tanh(), nn.Conv2d(2, 1, 3, padding=1))),
        (3, 1, 7, 7)),
    "sparse": (lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(8, 8, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 5))), (3, 1, 26, 26)),
    "residual": (lambda: Residual().eval(), (2, 2, 8, 8)),
    "u-net": (lambda: UNet().eval(), (2, 1, 8, 10)),
    "halves": (Halves, (2, 1, 16, 16)),
    "excited": (Excited, (2, 1, 16, 16)),
    "tied": (tied, (3, 6)),
    "autograd": (lambda: nn.Sequential(nn.Linear(4, 5), Apply(Cube.apply), nn.Linear(5, 3)),
        (3, 4)),
    "tokens": (lambda: nn.Sequential(nn.Unflatten(1, (3, 4)), *dense(4, 6, 5), nn.LayerNorm(5)),
        (3, 12)),
}  # fmt: skip
