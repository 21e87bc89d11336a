"""Images with labels: a file of arrays, or scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Images:
    """Images [N, 1, side, side] between 0 and 1, sides multiples of four, and classes [N].

    The last tenth of ``x`` is for validation: nothing is trained on it.
    """

    x: Tensor
    y: Tensor
    new_x: Tensor
    new_y: Tensor
    source: str

    @property
    def side(self) -> int:
        """Height and width."""
        return self.x.shape[-1]

    @property
    def training(self) -> Tensor:
        """What is trained on."""
        return self.x[: len(self.x) - len(self.x) // 10]

    def loader(self, batch: int = 64) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled batches to train on."""
        return DataLoader(TensorDataset(self.training), batch, shuffle=True)

    def validation(self) -> list[Tensor]:
        """Batches to stop training by."""
        return list(self.x[len(self.training) :].split(500))


def load(file: Path | None, train: int, test: int, side: int | None = None) -> Images:
    """The first images of x_train and x_test, or digits of 8 x 8 pixels if there is no file.

    Images of a file are averaged down to ``side`` pixels a side.
    """
    if file is not None:
        with numpy.load(file) as arrays:
            x, new_x = (
                torch.from_numpy(arrays[key][:count]).float().unsqueeze(1) / 255
                for key, count in (("x_train", train), ("x_test", test))
            )
            y, new_y = (
                torch.from_numpy(arrays[key][:count]).long()
                for key, count in (("y_train", train), ("y_test", test))
            )
        if side is not None:
            x, new_x = (
                F.interpolate(v, size=(side, side), mode="bilinear", antialias=True)
                for v in (x, new_x)
            )
        return Images(x, y, new_x, new_y, f"{file.stem}, {x.shape[-1]} x {x.shape[-1]}")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise SystemExit("without --data this needs scikit-learn: lapkernels[demo]") from error
    values, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(0))
    x = torch.as_tensor(values, dtype=torch.float32).view(-1, 1, 8, 8)[order] / 16
    y = torch.as_tensor(classes)[order].long()
    test = min(test, 400)
    x, new_x, y, new_y = x[:-test], x[-test:], y[:-test], y[-test:]
    return Images(x[:train], y[:train], new_x, new_y, "scikit-learn's digits")
