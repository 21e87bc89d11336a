"""Modules of the networks that are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def three_conv_three_dense() -> nn.Sequential:
    """3c3d for 32x32 images with three channels and ten classes."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
        *(nn.Conv2d(64, 96, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
        *(nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
        nn.Flatten(),
        *(nn.Linear(1152, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU()),
        nn.Linear(256, 10),
    )


def one_conv_one_dense() -> nn.Sequential:
    """The same kinds of layer, for 8x8 images and three classes."""
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
        *(nn.Flatten(), nn.Linear(36, 3)),
    )


def five_convs() -> nn.Sequential:
    """Five 3x3 convolutions that keep channels and resolution (Laplacian autoencoders, Fig. 7).

    The paper does not name the activation; tanh is the one it uses elsewhere.
    """
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def dense(widths: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Linear layers with an activation in between."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def autoencoder(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers with tanh to the last width and back; none behind the latent variables."""
    return nn.Sequential(*dense(widths, nn.Tanh), *dense(widths[::-1], nn.Tanh))


def conv_autoencoder(channels: tuple[int, int], widths: tuple[int, int], side: int) -> nn.Module:
    """Autoencoder of images with one channel and latent 2 (Laplacian autoencoders, A.2).

    The paper names the layers, not their widths. ``side`` is a quarter of the resolution.
    """
    first, second = channels
    features = second * side * side
    return nn.Sequential(
        *(nn.Conv2d(1, first, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Flatten(), *autoencoder((features, *widths, 2))),
        nn.Unflatten(1, (second, side, side)),
        *(nn.Upsample(scale_factor=2), nn.Tanh(), nn.Conv2d(second, first, 3, padding=1)),
        *(nn.Upsample(scale_factor=2), nn.Tanh(), nn.Conv2d(first, 1, 3, padding=1)),
    )


class PreActivationBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))), the skip a 1x1 convolution where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *(nn.BatchNorm2d(inputs), nn.ReLU()),
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(outputs), nn.ReLU()),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.branch(x)


def resnet(widths: Sequence[int], blocks: int, classes: int) -> nn.Sequential:
    """Pre-activation ResNet: a stage of ``blocks`` for each width, halving the resolution."""
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, padding=1, bias=False)]
    inputs = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(PreActivationBlock(inputs, width, stride))
            inputs = width
    layers += [nn.BatchNorm2d(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, from linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        # Softmax does not see a bias of the keys: its curvature would be rounding errors.
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        def split(t: Tensor) -> Tensor:
            return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).flatten(-2))


class EncoderLayer(nn.Module):
    """Pre-norm encoder layer: attention and two linear layers, each around a skip."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), SelfAttention(width, heads))
        self.dense = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.dense(x)


class Transformer(nn.Module):
    """Classifier of token sequences by the mean over positions."""

    def __init__(self, tokens: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.embedding(x))).mean(1))


class UNet(nn.Module):
    """Images to images; each level concatenates what it had before going down."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()

        def pair(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()),
                *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()),
            )

        pairs = list(zip(widths, widths[1:], strict=False))
        self.down = nn.ModuleList([pair(a, b) for a, b in [(1, widths[0]), *pairs]])
        self.pool = nn.MaxPool2d(2)
        self.rise = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs)])
        self.up = nn.ModuleList([pair(2 * a, a) for a, _ in reversed(pairs)])
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for index, stage in enumerate(self.down):
            x = stage(self.pool(x) if index else x)
            kept.append(x)
        kept.pop()
        for rise, stage in zip(self.rise, self.up, strict=True):
            x = stage(torch.cat([kept.pop(), rise(x)], 1))
        return self.head(x)
