"""Street-like scenes that are drawn, with the boxes and classes of what moves in them.

A road under a sky, cars, vans and pedestrians on it, and distractors that are none of them:
poles, bushes and billboards. Hard scenes are dark, noisy and more crowded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HEIGHT, WIDTH = 64, 128
CLASSES = ("background", "car", "van", "pedestrian")


@dataclass(frozen=True)
class Scene:
    """``image`` [3, H, W]; ``boxes`` [K, 4] as left, top, right, bottom; ``labels`` [K]."""

    image: Tensor
    boxes: Tensor
    labels: Tensor


class Painter:
    """Draws rectangles and ellipses into an image, numbers out of one generator."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = torch.arange(HEIGHT).unsqueeze(1) + 0.5
        self.columns = torch.arange(WIDTH).unsqueeze(0) + 0.5

    def uniform(self, low: float, high: float) -> float:
        """A number between the two."""
        return low + (high - low) * float(torch.rand((), generator=self.generator))

    def colour(self, low: float, high: float) -> Tensor:
        """[3, 1, 1]."""
        return torch.rand(3, 1, 1, generator=self.generator) * (high - low) + low

    def background(self) -> Tensor:
        """Sky, road and lane marks."""
        image = torch.empty(3, HEIGHT, WIDTH)
        horizon = int(self.uniform(14, 24))
        image[:, :horizon] = torch.tensor([0.6, 0.7, 0.85]).view(3, 1, 1) + self.colour(-0.1, 0.1)
        image[:, horizon:] = self.uniform(0.3, 0.45)
        lane = int(self.uniform(40, 56))
        for start in range(int(self.uniform(0, 16)), WIDTH, 24):
            image[:, lane : lane + 2, start : start + 10] = 0.9
        return image

    def rectangle(self, image: Tensor, box: tuple[float, ...], colour: Tensor) -> None:
        """Fill left, top, right, bottom."""
        left, top, right, bottom = (round(value) for value in box)
        rows, columns = slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0))
        image[:, rows, columns] = colour

    def ellipse(self, image: Tensor, box: tuple[float, ...], colour: Tensor) -> None:
        """Fill the ellipse inside left, top, right, bottom."""
        left, top, right, bottom = box
        across = (self.columns - (left + right) / 2) / ((right - left) / 2)
        down = (self.rows - (top + bottom) / 2) / ((bottom - top) / 2)
        image[:] = torch.where(across.square() + down.square() <= 1, colour, image)

    def thing(self, image: Tensor, kind: str, left: float, bottom: float, size: float) -> None:
        """A car, van or pedestrian whose box has this corner and width or height."""
        width, height = extent(kind, size)
        right, top = left + width, bottom - height
        body, dark = self.colour(0.1, 1.0), torch.full((3, 1, 1), 0.08)
        glass = torch.tensor([0.75, 0.85, 0.95]).view(3, 1, 1)
        if kind == "pedestrian":
            self.ellipse(image, (left + 0.2 * width, top, right - 0.2 * width, top + 0.25 * height),
                         torch.tensor([0.85, 0.65, 0.5]).view(3, 1, 1))  # fmt: skip
            self.rectangle(image, (left, top + 0.25 * height, right, top + 0.65 * height), body)
            for share in (0.1, 0.6):
                leg = left + share * width
                self.rectangle(image, (leg, top + 0.65 * height, leg + 0.3 * width, bottom), dark)
            return
        hood = top + (0.45 if kind == "car" else 0.0) * height
        self.rectangle(image, (left, hood, right, bottom - 0.15 * height), body)
        if kind == "car":
            cabin = (left + 0.2 * width, top, right - 0.2 * width, hood)
            self.rectangle(image, cabin, body)
            self.rectangle(image, (cabin[0] + 2, top + 1, cabin[2] - 2, hood), glass)
        else:
            window = (left + 0.65 * width, top + 0.15 * height, right - 1, top + 0.45 * height)
            self.rectangle(image, window, glass)
        wheel = 0.3 * height
        for share in (0.1, 0.9):
            centre = left + share * (width - wheel) + 0.5 * wheel
            corners = (centre - wheel / 2, bottom - wheel, centre + wheel / 2, bottom)
            self.ellipse(image, corners, dark)

    def distractor(self, image: Tensor) -> None:
        """A pole, a bush or a billboard."""
        left, bottom = self.uniform(0, WIDTH - 8), self.uniform(28, 60)
        kind = int(self.uniform(0, 3))
        if kind == 0:
            self.rectangle(image, (left, bottom - 34, left + 3, bottom), self.colour(0.3, 0.5))
        elif kind == 1:
            green = torch.tensor([0.1, 0.4, 0.1]).view(3, 1, 1) + self.colour(0, 0.15)
            self.ellipse(image, (left, bottom - 14, left + self.uniform(10, 26), bottom), green)
        else:
            board = (left, bottom - 22, left + self.uniform(16, 34), bottom - 8)
            self.rectangle(image, board, self.colour(0.1, 1.0))
            self.rectangle(image, (left + 7, bottom - 8, left + 9, bottom), self.colour(0.2, 0.4))


def extent(kind: str, size: float) -> tuple[float, float]:
    """Width and height."""
    return {"car": (size, 0.5 * size), "van": (0.9 * size, 0.75 * size)}.get(
        kind, (0.42 * 0.8 * size, 0.8 * size)
    )


def scene(seed: int, hard: bool = False) -> Scene:
    """One scene, the same for the same seed."""
    painter = Painter(seed)
    image = painter.background()
    for _ in range(int(painter.uniform(1, 6 if hard else 4))):
        painter.distractor(image)
    boxes, labels = [], []
    # From the back to the front, so that near ones hide far ones.
    for bottom in sorted(painter.uniform(30, 62) for _ in range(int(painter.uniform(1, 5)))):
        label = 1 + int(painter.uniform(0, 3))
        size = 24 + (bottom - 30) / 32 * painter.uniform(6, 20)
        width, height = extent(CLASSES[label], size)
        left = painter.uniform(0, WIDTH - width)
        painter.thing(image, CLASSES[label], left, bottom, size)
        boxes.append([left, bottom - height, left + width, bottom])
        labels.append(label)
    light = painter.uniform(0.35, 0.7) if hard else painter.uniform(0.8, 1.0)
    noise = painter.uniform(0.08, 0.2) if hard else 0.03
    image = image * light + noise * torch.randn(image.shape, generator=painter.generator)
    return Scene(image, torch.tensor(boxes), torch.tensor(labels))
