"""Tasks of the calibration study: real data, a network for each, trained once and kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Data:
    """Inputs with targets to train on, to tune on and to test on, and inputs that are shifted."""

    train: Pair
    held_out: Pair
    test: Pair
    shifted: Tensor


@dataclass(frozen=True)
class Task:
    """How data are loaded from a folder, and a network made and trained.

    ``file`` is what it needs of the folder, None if nothing.
    """

    name: str
    file: str | None
    load: Callable[[Path | None, int], Data]
    network: Callable[[Data], nn.Module]
    epochs: int
    optimizer: Callable[[Any], torch.optim.Optimizer]
    augmented: bool = False

    @property
    def regression(self) -> bool:
        """Whether targets are real numbers."""
        return self.name.startswith(("uci", "diabetes"))

    def prepared(
        self, folder: Path | None, cache: Path, seed: int, epochs: int | None = None
    ) -> tuple[Data, nn.Module]:
        """Data and the trained network, from the ``cache`` if it is there."""
        data = self.load(folder, seed)
        return data, self.member(data, cache, seed, 0, epochs)

    def member(
        self, data: Data, cache: Path, seed: int, number: int, epochs: int | None = None
    ) -> nn.Module:
        """One of several networks on the same data, in eval mode."""
        torch.manual_seed(1000 * number + seed)
        model = self.network(data)
        epochs = self.epochs if epochs is None else epochs
        key = hashlib.sha256(f"{model}{epochs}".encode()).hexdigest()[:8]
        path = cache / f"{self.name}-{seed}-{number}-{key}.pt".replace(" ", "_")
        if path.exists():
            model.load_state_dict(torch.load(path))
        else:
            train(model, data, self, epochs)
            cache.mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), path)
        return model.eval()


def train(model: nn.Module, data: Data, task: Task, epochs: int) -> None:
    """Minimise the mean loss in batches of 64, at a rate that falls to zero as a cosine."""
    x, y = data.train
    loss = nn.functional.mse_loss if task.regression else nn.functional.cross_entropy
    optimizer = task.optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(64):
            batch = x[index]
            if task.augmented:
                batch = moved(batch)
            optimizer.zero_grad()
            loss(model(batch), y[index]).backward()
            optimizer.step()
        schedule.step()


def moved(x: Tensor) -> Tensor:
    """Images mirrored and moved by up to two pixels, all of a batch alike."""
    x = x.flip(-1) if torch.rand(()) < 0.5 else x
    across, down = (int(torch.randint(-2, 3, ())) for _ in range(2))
    return x.roll((down, across), (-2, -1))


def rotated(x: Tensor, degrees: float = 45.0) -> Tensor:
    """Images [N, C, H, W] turned."""
    angle = torch.tensor(degrees).deg2rad()
    c, s = angle.cos(), angle.sin()
    matrix = torch.tensor([[c, -s, 0], [s, c, 0]]).expand(len(x), 2, 3)
    grid = nn.functional.affine_grid(matrix, list(x.shape), align_corners=False)
    return nn.functional.grid_sample(x, grid, align_corners=False)


def images(x: Tensor, y: Tensor, test: Pair | None, count: int, seed: int) -> Data:
    """``count`` images to train on and a tenth as many to tune on; shifted are turned tests."""
    mixed = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    seen, end = mixed[:count], count + count // 9
    held = mixed[count:end]
    new = (x[mixed[end:]], y[mixed[end:]]) if test is None else test
    return Data((x[seen], y[seen]), (x[held], y[held]), new, rotated(new[0]))


def digits(folder: Path | None, seed: int) -> Data:
    """The digits of scikit-learn, 8 by 8: 900 to train on."""
    x, y = load_digits(return_X_y=True)
    return images(
        torch.tensor(x / 16).float().reshape(-1, 1, 8, 8), torch.tensor(y), None, 900, seed
    )


def from_file(name: str, count: int) -> Callable[[Path | None, int], Data]:
    """Of a file of images: 2000 are tested."""

    def load(folder: Path | None, seed: int) -> Data:
        assert folder is not None
        found = np.load(folder / name)
        parts = []
        for part in ("train", "test"):
            x = torch.tensor(found[f"x_{part}"])
            x = x.permute(0, 3, 1, 2) if x.dim() == 4 else x.unsqueeze(1)
            parts.append((x.float() / 255 - 0.3, torch.tensor(found[f"y_{part}"]).long()))
        (x, y), (new, labels) = parts
        return images(x, y, (new[:2000], labels[:2000]), count, seed)

    return load


def rows(x: Any, y: Any, seed: int) -> Data:
    """Standardised rows: a tenth to tune on and a fifth to test on; shifted ones are far away."""
    x, y = torch.as_tensor(x).float(), torch.as_tensor(y).float().reshape(-1, 1)
    mixed = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:4000]
    x, y = x[mixed], y[mixed]
    tenth = len(x) // 10
    parts = [slice(3 * tenth, None), slice(0, tenth), slice(tenth, 3 * tenth)]
    train = parts[0]
    x = (x - x[train].mean(0)) / x[train].std(0).clamp_min(1e-6)
    y = (y - y[train].mean(0)) / y[train].std(0)
    seen, held, test = ((x[part], y[part]) for part in parts)
    return Data(seen, held, test, 2 * x[parts[2]] + 1)


def uci(name: str) -> Callable[[Path | None, int], Data]:
    """A table of ``uci.npz``, whose last column is the target."""

    def load(folder: Path | None, seed: int) -> Data:
        assert folder is not None
        table = np.load(folder / "uci.npz")[name]
        return rows(table[:, :-1], table[:, -1], seed)

    return load


def diabetes(folder: Path | None, seed: int) -> Data:
    """442 patients, from scikit-learn."""
    x, y = load_diabetes(return_X_y=True)
    return rows(x, y, seed)


def mlp(width: int, dropout: float = 0.0, norm: bool = False) -> Callable[[Data], nn.Module]:
    """Two hidden layers."""

    def make(data: Data) -> nn.Module:
        x, y = data.train
        sizes, layers = [x[0].numel(), width, width], [nn.Flatten()]
        for a, b in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
        outputs = y.shape[1] if y.is_floating_point() else int(y.max()) + 1
        return nn.Sequential(*layers, nn.Linear(width, outputs))

    return make


def cnn(norm: bool = False) -> Callable[[Data], nn.Module]:
    """Three convolutions with pooling, and two Linear layers."""

    def make(data: Data) -> nn.Module:
        x = data.train[0]
        layers: list[nn.Module] = []
        sizes = [x.shape[1], 16, 32, 32]
        for a, b in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Conv2d(a, b, 3, padding=1), *([nn.BatchNorm2d(b)] if norm else [])]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        body = nn.Sequential(*layers, nn.Flatten())
        width = body(x[:2]).shape[1]
        return nn.Sequential(*body, nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))

    return make


class Patches(nn.Module):
    """A small vision transformer on patches of 2 by 2 pixels."""

    def __init__(self, side: int = 8, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, 2)
        self.place = nn.Parameter(0.02 * torch.randn((side // 2) ** 2, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).mT + self.place
        return self.head(self.body(tokens).mean(1))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 2e-3, weight_decay=1e-2)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=5e-4)


FASHION, MNIST, CIFAR = "fashion_mnist.npz", "mnist.npz", "cifar10_subset.npz"
TASKS = {
    task.name: task
    for task in (
        Task("digits, MLP", None, digits, mlp(64), 30, adamw),
        Task("digits, transformer", None, digits, lambda data: Patches(), 40, adamw),
        Task("Fashion 5k, CNN", FASHION, from_file(FASHION, 4500), cnn(), 12, adamw),
        Task("Fashion 5k, CNN, SGD", FASHION, from_file(FASHION, 4500), cnn(), 12, sgd),
        Task("Fashion 5k, batch norm", FASHION, from_file(FASHION, 4500), cnn(True), 12, adamw),
        Task("Fashion 5k, stopped early", FASHION, from_file(FASHION, 4500), cnn(), 3, adamw),
        Task(
            "MNIST 5k, dropout", MNIST, from_file(MNIST, 4500), mlp(128, 0.2, True), 15, adamw
        ),
        Task("MNIST 500, MLP", MNIST, from_file(MNIST, 450), mlp(128), 30, adamw),
        Task("CIFAR 9k, CNN", CIFAR, from_file(CIFAR, 9000), cnn(), 12, adamw),
        Task(
            "CIFAR 9k, augmented", CIFAR, from_file(CIFAR, 9000), cnn(True), 12, adamw, True
        ),
        Task("diabetes", None, diabetes, mlp(50), 60, adamw),
        *(
            Task(f"uci {name}", "uci.npz", uci(name), mlp(50), 100, adamw)
            for name in ("yacht", "concrete", "energy", "wine", "power")
        ),
    )
}  # fmt: skip
