"""A small pre-activation ResNet with softplus on images of half resolution, and how it is trained.

Shared by the examples of Variational Laplace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lapkernels.laplace import calibration
from lapkernels.variational import MeanField, Objective

Labelled = tuple[Tensor, Tensor]


def load(data: Path | None, train: int, validation: int, test: int) -> list[Labelled]:
    """Images [N, C, H/2, W/2] with zero mean and unit variance, and labels: three sets.

    Validation images follow those to train with, and test images are the last. ``data`` is an .npz
    file with x_train, y_train, x_test, y_test and images [N, H, W] or [N, H, W, C] of bytes;
    without it, scikit-learn's digits at their own size.
    """
    if data is None:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        mixed = np.random.default_rng(0).permutation(len(x))
        images = torch.tensor(x[mixed]).float().reshape(-1, 1, 8, 8)
        labels = torch.tensor(y[mixed]).long()
        train = min(train, 1000)
        seen, unseen = (images[:-500], labels[:-500]), (images[-500:], labels[-500:])
    else:
        arrays = np.load(data)
        seen, unseen = (
            (_halved(arrays[f"x_{part}"][some]), torch.tensor(arrays[f"y_{part}"][some]).long())
            for part, some in (
                ("train", slice(train + validation)),
                ("test", slice(-test, None)),
            )
        )
    mean, std = seen[0][:train].mean(), seen[0][:train].std()
    return [
        ((x - mean) / std, y)
        for x, y in (
            (seen[0][:train], seen[1][:train]),
            (seen[0][train : train + validation], seen[1][train : train + validation]),
            (unseen[0][-test:], unseen[1][-test:]),
        )
    ]


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


def network(channels: int, side: int, width: int = 8) -> nn.Sequential:
    """Of square images with ten classes, in stages of ``width`` and twice that.

    The first convolution halves the side, and the second stage once more.
    """
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
        *(Block(width, width, 1), Block(width, 2 * width, 2)),
        *(nn.BatchNorm2d(2 * width), nn.Softplus(), nn.Flatten()),
        nn.Linear(2 * width * ((side + 3) // 4) ** 2, 10),
    )


def train(
    objective: Objective,
    groups: list[dict],
    data: Labelled,
    epochs: int,
    batch: int,
    seed: int,
    after: Callable[[float], None] | None = None,
) -> None:
    """Adam with a rate that falls to zero; ``after`` each epoch is given its mean loss."""
    optimizer = torch.optim.Adam(groups, fused=True)
    x, y = data
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
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
        if after is not None:
            after(total * batch / len(order))
    objective.eval()


def mean_log_ratio(objective: Objective) -> float | None:
    """The mean of log σ/s over all parameters, if the objective has σ."""
    if not isinstance(objective, MeanField):
        return None
    with torch.no_grad():
        terms = zip(objective.names, objective.log_std, strict=True)
        away = [
            (log_std - math.log(objective.prior_std[name])).flatten() for name, log_std in terms
        ]
        return float(torch.cat(away).mean())


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
        return cls(float(nll), float(right), calibration(p, y).ece)
