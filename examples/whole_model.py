"""Curvature of a whole model in one call each: a residual classifier, any layer, any output.

Prints every method's diagonal beside the exact one, and how sure the linearised model is of inputs
that look like its training data, and of inputs that do not.
"""

import time
from typing import Literal

import torch
from torch import Tensor, nn

import lapkernels as lk

Method = Literal["exact", "mc", "empirical", "approx", "mixed"]


class Block(nn.Module):
    """Two convolutions around which the input is added back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        """Pre-activation residual block."""
        return x + self.second(self.first(self.norm(x).relu()).relu())


def patterns(count: int) -> tuple[Tensor, Tensor]:
    """Noisy stripes of four directions, and which one."""
    labels = torch.arange(count) % 4
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    waves = torch.stack([x, y, x + y, x - y]).mul(torch.pi / 3).sin()
    return (waves[labels] + 0.3 * torch.randn(count, 12, 12)).unsqueeze(1), labels


def by_autograd(model: nn.Module, images: Tensor) -> Tensor:
    """The exact diagonal from one backward pass for every image and column of the softmax."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for image in images:
        logits = model(image.unsqueeze(0))[0]
        p = logits.detach().softmax(0)
        for column in p.sqrt().unsqueeze(1) * (torch.eye(len(p)) - p):
            grads = torch.autograd.grad(logits, parameters, column, retain_graph=True)
            total = [t + g.square() for t, g in zip(total, grads, strict=True)]
    return torch.cat([t.flatten() for t in total])


torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(1, 8, 3, padding=1), Block(8), nn.AvgPool2d(2), Block(8)),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
)
images, labels = patterns(256)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(8):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
model.eval()

batches = list(zip(images.split(64), labels.split(64), strict=True))
exact = lk.diag(model, batches, "categorical", method="exact")
methods: tuple[Method, ...] = ("exact", "mc", "empirical", "approx", "mixed")
for method in methods:
    start = time.perf_counter()
    diagonal = lk.diag(model, batches, "categorical", method, generator=torch.Generator())
    seconds = time.perf_counter() - start
    error = (diagonal.vector() - exact.vector()).norm() / exact.vector().norm()
    print(f"{method:<10} {1e3 * seconds:7.1f} ms   relative distance to exact {error:.2f}")

few = images[:4]
difference = lk.diag(model, few, "categorical").vector() - by_autograd(model, few)
relative = difference.abs().max() / by_autograd(model, few).abs().max()
print(f"largest relative difference from autograd: {relative:.1e}")

variance = {name: 1 / (1 + d) for name, d in exact.items()}
for name, inputs in (("stripes", patterns(32)[0]), ("noise", 2 * torch.randn(32, 1, 12, 12))):
    deviation = lk.predictive_variance(model, inputs, variance).sqrt().mean()
    print(f"standard deviation of the logits, {name:<8} {deviation:.2f}")
