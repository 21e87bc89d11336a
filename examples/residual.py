"""A small pre-activation ResNet with softplus on images of half resolution, and how it is trained.

Shared by the examples of Variational Laplace.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lapkernels.laplace import calibration
from lapkernels.variational import Objective

Labelled = tuple[Tensor, Tensor]


def load(data: Path | None, train: int, test: int) -> tuple[Labelled, Labelled]:
    """Images [N, C, H/2, W/2] with zero mean and unit variance, and labels, to train and to test.

    ``data`` is an .npz file with x_train, y_train, x_test, y_test and images [N, H, W] or
    [N, H, W, C] of bytes; without it, scikit-learn's digits at their own size.
    """
    if data is None:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        mixed = np.random.default_rng(0).permutation(len(x))
        images = torch.tensor(x[mixed]).float().reshape(-1, 1, 8, 8)
        labels = torch.tensor(y[mixed]).long()
        first, second = (images[:-500], labels[:-500]), (images[-500:], labels[-500:])
    else:
        arrays = np.load(data)
        first, second = (
            (_halved(arrays[f"x_{part}"][:count]), torch.tensor(arrays[f"y_{part}"][:count]).long())
            for part, count in (("train", train), ("test", test))
        )
    mean, std = first[0].mean(), first[0].std()
    return (
        ((first[0][:train] - mean) / std, first[1][:train]),
        ((second[0][:test] - mean) / std, second[1][:test]),
    )


def _halved(images: np.ndarray) -> Tensor:
    """Means over 2 x 2 pixels, channels first."""
    x = torch.tensor(images).float()
    x = x.unsqueeze(1) if x.dim() == 3 else x.movedim(-1, 1)
    return nn.functional.avg_pool2d(x, 2)


class Block(nn.Module):
    """x + conv(softplus(norm(conv(softplus(norm(x)))))), as wide as wanted."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *(nn.BatchNorm2d(inputs), nn.Softplus()),
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(outputs), nn.Softplus()),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The skip plus the branch."""
        return self.skip(x) + self.branch(x)


def network(channels: int, side: int) -> nn.Sequential:
    """Of square images with ten classes; 35 thousand parameters at 14 x 14."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1, bias=False),
        *(Block(16, 16, 1), Block(16, 32, 2)),
        *(nn.BatchNorm2d(32), nn.Softplus(), nn.Flatten()),
        nn.Linear(32 * ((side + 1) // 2) ** 2, 10),
    )


def train(
    objective: Objective, groups: list[dict], data: Labelled, epochs: int, batch: int, seed: int
) -> list[float]:
    """Adam with a rate that falls to zero over the epochs; the mean loss of each epoch."""
    optimizer = torch.optim.Adam(groups)
    x, y = data
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    curve = []
    objective.train()
    for _ in range(epochs):
        total = 0.0
        order = torch.randperm(len(x), generator=generator)[: len(x) // batch * batch]
        for part in order.split(batch):
            optimizer.zero_grad()
            loss = objective.loss(x[part], y[part])
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        curve.append(total * batch / len(order))
    objective.eval()
    return curve


@dataclass(frozen=True)
class Scores:
    """Of predicted probabilities on test data."""

    nll: float
    accuracy: float
    ece: float

    @classmethod
    def of(cls, p: Tensor, y: Tensor) -> Scores:
        """From probabilities [N, C] and labels [N]."""
        nll = -p.gather(1, y.unsqueeze(1)).clamp_min(1e-30).log().mean()
        right = (p.argmax(1) == y).double().mean()
        return cls(float(nll), float(right), calibration(p, y).expected_error)
