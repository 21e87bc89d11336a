"""Networks of many kinds, none of which anything was tuned to, and the quantities asked of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapkernels as lk
from benchmarks.architectures import (
    autoencoder,
    conv_autoencoder,
    dense,
    five_convs,
    three_conv_three_dense,
)


class Residual(nn.Module):
    """x + branch(x), with a projection where shapes change."""

    def __init__(self, branch: nn.Module, skip: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.branch, self.skip, self.last = branch, skip, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.skip(x) + self.branch(x))


def convolution(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
) -> list[Any]:
    """A convolution without bias and its batch norm."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


def resnet18(width: int = 32) -> nn.Sequential:
    """Four stages of two basic blocks, for small images."""
    layers = [*convolution(3, width, 3), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            branch = nn.Sequential(
                *(*convolution(inputs, outputs, 3, stride), nn.ReLU()),
                *convolution(outputs, outputs, 3),
            )
            same = stride == 1 and inputs == outputs
            skip = (
                nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))
            )
            layers.append(Residual(branch, skip, nn.ReLU()))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def vgg(widths: Sequence[int] = (32, 64, 128, 128)) -> nn.Sequential:
    """Two convolutions and a pool for each width."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in widths:
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        inputs = width
    head = dense((inputs * 4, 128, 10), nn.ReLU)
    return nn.Sequential(*layers, nn.Flatten(), *head)


def mobilenet(widths: Sequence[int] = (16, 24, 40)) -> nn.Sequential:
    """Inverted residuals with depthwise convolutions."""
    layers = [*convolution(3, widths[0], 3, 2), nn.ReLU6()]
    inputs = widths[0]
    for outputs in widths:
        for stride in (1 if outputs == inputs else 2, 1):
            wide = 4 * inputs
            branch = nn.Sequential(
                *(*convolution(inputs, wide, 1), nn.ReLU6()),
                *(*convolution(wide, wide, 3, stride, wide), nn.ReLU6()),
                *convolution(wide, outputs, 1),
            )
            same = stride == 1 and inputs == outputs
            layers.append(Residual(branch, nn.Identity(), nn.Identity()) if same else branch)
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class VisionTransformer(nn.Module):
    """Patches, a class token, positions, encoder layers, a linear head."""

    def __init__(self, width: int = 64, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width) / 8)
        self.positions = nn.Parameter(torch.randn(1, 65, width) / 8)
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, heads, 2 * width, **options) for _ in range(layers))
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class LastState(nn.Module):
    """A linear head on the last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


def lenet() -> nn.Sequential:
    """LeNet-5 for 28x28 images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        *dense((400, 120, 84, 10), nn.Tanh),
    )


def temporal() -> nn.Sequential:
    """Convolutions along time."""
    return nn.Sequential(
        *(nn.Conv1d(8, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        nn.Linear(64, 6),
    )


@dataclass(frozen=True)
class General:
    """How to build a network, the shape of a batch, and its likelihood."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    likelihood: str = "categorical"

    def problem(self) -> tuple[nn.Module, Tensor]:
        """The network in eval mode and a batch, from fixed seeds."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build().eval(), torch.randn(self.shape)


NETWORKS: dict[str, General] = {
    "3c3d": General(three_conv_three_dense, (16, 3, 32, 32)),
    "lenet": General(lenet, (32, 1, 28, 28)),
    "resnet18": General(resnet18, (8, 3, 32, 32)),
    "vgg": General(vgg, (8, 3, 32, 32)),
    "mobilenet": General(mobilenet, (8, 3, 32, 32)),
    "vit": General(VisionTransformer, (8, 3, 32, 32)),
    "lstm": General(LastState, (16, 20, 16)),
    "conv1d": General(temporal, (16, 8, 128)),
    "mlp": General(lambda: dense((13, 50, 50, 1), nn.Tanh), (256, 13), "gaussian"),
    "mlp-ae": General(lambda: autoencoder((784, 512, 256, 2)), (16, 784), "gaussian"),
    "conv-ae": General(lambda: conv_autoencoder((8, 16), (64, 32), 7), (8, 1, 28, 28), "gaussian"),
    "conv5": General(five_convs, (1, 3, 32, 32), "gaussian"),
    "conv5-flat": General(
        lambda: nn.Sequential(*five_convs(), nn.Flatten()), (1, 3, 32, 32), "gaussian"
    ),
}


def forward_and_backward(model: nn.Module, x: Tensor, likelihood: str) -> Any:
    """The unit: a gradient of the loss in every parameter."""
    f = model(x)
    if likelihood == "gaussian":
        loss = 0.5 * f.square().sum()
    else:
        loss = F.cross_entropy(f, torch.zeros(len(f), dtype=torch.long), reduction="sum")
    return torch.autograd.grad(loss, list(model.parameters()))


def predictive(model: nn.Module, x: Tensor, likelihood: str) -> Any:
    """The variance of all outputs under unit variances of the parameters."""
    ones = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    return lk.predictive_variance(model, x, ones)


QUANTITIES: dict[str, Callable[[nn.Module, Tensor, Any], Any]] = {
    "unit": forward_and_backward,
    "exact": lambda model, x, likelihood: lk.diag(model, x, likelihood, "exact"),
    "mc": lambda model, x, likelihood: lk.diag(model, x, likelihood, "mc"),
    "kfac": lambda model, x, likelihood: lk.kron(model, x, likelihood, "mc"),
    "approx": lambda model, x, likelihood: lk.diag(model, x, likelihood, "approx"),
    "predictive": predictive,
}
