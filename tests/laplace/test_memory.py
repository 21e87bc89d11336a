"""Predictions of a network with 11 million parameters hold no Jacobian."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.demo.memory import PROC, peak_extra_memory
from tests.curvature.memory import ALLOCATOR
from tests.programs import printed

GIB = 1 << 30


class Block(nn.Module):
    """Two convolutions with norms, and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)])
        self.short = nn.Conv2d(inner, outer, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        return (h + self.short(x)).relu()


def resnet18() -> nn.Module:
    """For images of 32 by 32 and ten classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inner = 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inner, outer, stride), Block(outer, outer, 1)]
        inner = outer
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers).eval()


def measure() -> None:
    """Print the peak of predicting a batch of 16 with a diagonal posterior."""
    torch.manual_seed(0)
    model, x = resnet18(), torch.randn(16, 3, 32, 32)
    la = lk.Laplace(model, "categorical", method="approx").fit((x, torch.arange(16) % 10))
    la.predict(x[:1])
    prediction, peak = peak_extra_memory(lambda: la.predict(x))
    size = sum(p.numel() for p in model.parameters())
    good = bool(prediction.variance.isfinite().all() and (prediction.variance > 0).all())
    print(json.dumps({"parameters": size, "peak": peak, "good": good}))


@pytest.mark.slow
@pytest.mark.skipif(not (PROC / "clear_refs").exists(), reason="the peak is read from /proc")
def test_predictive_of_a_large_residual_network() -> None:
    found = json.loads(printed("-m", "tests.laplace.test_memory", **ALLOCATOR))
    assert found["parameters"] > 11_000_000 and found["good"]
    if found["peak"] is None:
        pytest.skip("the peak cannot be reset here")
    # The Jacobian alone would be 16 * 10 * 11 M * 4 bytes = 6.7 GiB.
    assert found["peak"] < GIB


if __name__ == "__main__":
    measure()
