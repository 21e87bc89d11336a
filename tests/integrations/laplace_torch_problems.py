"""Small networks with data, for laplace-torch's backends and ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

COUNT = 7


class Tokens(nn.Module):
    """Classes of a sequence out of a mapping, as models of language take their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(6, 4), nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, data: Any) -> Tensor:
        shown = data["attention_mask"].unsqueeze(2)
        features = (self.table(data["input_ids"]) * shown).sum(1) / shown.sum(1)
        return self.head(torch.tanh(self.body(features)))


class Reward(nn.Module):
    """One number for each of a pair of inputs in training, for a single one later."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(2) if x.dim() == 3 else self.net(x)


class Residual(nn.Module):
    """A skip, a layer that is called twice, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(3, 4), nn.Linear(4, 4)
        self.norm, self.last = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + torch.tanh(self.twice(h))
        return self.last(self.norm(h + torch.tanh(self.twice(h))))


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def _conv(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(features, 3))


# Model and shape of an input.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)), (3,)),
    "no-bias": (
        lambda: nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)),
        (3,),
    ),
    "positions": (lambda: _conv(nn.Linear(3, 2), features=8), (4, 3)),
    "conv1d": (lambda: _conv(nn.Conv1d(2, 3, 2, stride=2), features=9), (2, 6)),
    "conv2d": (
        lambda: _conv(nn.Conv2d(2, 3, 3, stride=2), nn.ReLU(), nn.Conv2d(3, 2, 2), features=8),
        (2, 7, 7),
    ),
    "groups": (lambda: _conv(nn.Conv2d(4, 6, 2, groups=2), features=24), (4, 3, 3)),
    "transposed-1x1": (
        lambda: _conv(nn.ConvTranspose2d(2, 3, 1, stride=2), features=27),
        (2, 2, 2),
    ),
    "transposed": (lambda: _conv(nn.ConvTranspose2d(2, 3, 2), features=27), (2, 2, 2)),
    "batch-norm": (lambda: _conv(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), features=12), (2, 3, 3)),
    "residual": (Residual, (3,)),
    "frozen": (_frozen, (3,)),
    "one-output": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), (3,)),
}


def problem(name: str, likelihood: str, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in eval mode and float64, inputs [7, ...] and targets."""
    build, shape = NETWORKS[name]
    torch.manual_seed(seed)
    model = build().double().eval()
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    x = torch.randn(COUNT, *shape, dtype=torch.float64)
    return model, x, targets(model(x), likelihood)


def targets(f: Tensor, likelihood: str) -> Tensor:
    if likelihood == "classification":
        return torch.randint(f.shape[1], f.shape[:1])
    return torch.randn(f.shape, dtype=f.dtype)


def tokens() -> tuple[nn.Module, dict[str, Tensor]]:
    """A model that takes a mapping, and a batch with labels in it."""
    torch.manual_seed(0)
    ids = torch.randint(6, (COUNT, 5))
    mask = torch.ones(COUNT, 5, dtype=torch.float64)
    mask[::2, 3:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(3, (COUNT,))}
    return Tokens().double().eval(), batch
