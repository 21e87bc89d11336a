"""Images for the demo: scikit-learn's digits, a user's file, or drawn ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

# A seven-segment display: rows and columns of each segment, from the top clockwise, then the
# middle one; and which segments each digit lights.
UPPER, LOWER, ACROSS = (1, 4), (3, 7), (2, 6)
STROKES = ((1, ACROSS), (UPPER, 5), (LOWER, 5), (6, ACROSS), (LOWER, 2), (UPPER, 2), (3, ACROSS))
SEGMENTS = ("012345", "12", "01346", "01236", "1256", "02356", "023456", "012", "0123456", "012356")


@dataclass(frozen=True)
class Images:
    """Images [N, 1, H, W] between 0 and 1, height and width multiples of four."""

    train: Tensor
    test: Tensor


def load(file: Path | None) -> tuple[Images, str]:
    """Images, shuffled, and where they come from."""
    if file is not None:
        with numpy.load(file) as arrays:
            missing = {"x_train", "x_test"} - set(arrays)
            if missing:
                raise ValueError(f"{file} lacks {sorted(missing)}: it holds {sorted(arrays)}")
            train, test = (_from_bytes(arrays[key]) for key in ("x_train", "x_test"))
        return Images(_shuffled(train), _shuffled(test)), str(file)
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        images, source = drawn_digits(1797), "drawn digits, as scikit-learn is not installed"
    else:
        digits = numpy.asarray(load_digits(return_X_y=True)[0], dtype=numpy.float32)
        images, source = torch.from_numpy(digits).view(-1, 1, 8, 8) / 16, "scikit-learn's digits"
    images = _shuffled(images)
    return Images(images[:-297], images[-297:]), source


def drawn_digits(count: int) -> Tensor:
    """Seven-segment digits of 8x8 pixels, shifted, blurred and of varying brightness."""
    shapes = torch.zeros(10, 1, 8, 8)
    for digit, lit in enumerate(SEGMENTS):
        for segment in lit:
            rows, columns = (
                slice(*side) if isinstance(side, tuple) else slice(side, side + 1)
                for side in STROKES[int(segment)]
            )
            shapes[digit, 0, rows, columns] = 1
    picked = shapes[torch.randint(10, (count,))]
    shift = torch.randint(-1, 2, (count, 2)).tolist()
    moved = torch.stack([i.roll(tuple(s), (1, 2)) for i, s in zip(picked, shift, strict=True)])
    blur = torch.tensor([[1.0, 2, 1], [2, 8, 2], [1, 2, 1]]).view(1, 1, 3, 3) / 12
    strength = 0.7 + 0.3 * torch.rand(count, 1, 1, 1)
    images = F.conv2d(moved, blur, padding=1) * strength
    return (images + 0.03 * torch.randn(moved.shape)).clamp(0, 1)


def examples(test: Tensor) -> list[tuple[str, Tensor]]:
    """Named groups of images: like the training data, and unlike."""
    digits, others = test[:4], test[4:6]
    noise = torch.rand_like(test[:2])
    return [
        ("test digits", digits),
        ("rotated by 90°", others.rot90(1, (2, 3))),
        ("inverted", 1 - test[6:8]),
        ("noise", noise),
    ]


def _from_bytes(array: numpy.ndarray) -> Tensor:
    images = torch.from_numpy(array).float().flatten(0, -3).unsqueeze(1) / 255
    # The autoencoder halves the resolution twice.
    height, width = images.shape[2:]
    return F.pad(images, (0, -width % 4, 0, -height % 4))


def _shuffled(images: Tensor) -> Tensor:
    return images[torch.randperm(len(images))]
