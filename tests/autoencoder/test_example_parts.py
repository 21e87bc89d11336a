"""What the autoencoder examples are made of: whitened images, and images that are unusual."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "autoencoders"
PARTS = ((1, "train"), (2, "test"))


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder's modules can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for path in FOLDER.glob("*.py"):
        if path.stem not in before:
            sys.modules.pop(path.stem, None)


def test_unusual_images_of_the_novelty_example(beside: None, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    for n, part in PARTS:
        arrays[f"x_{part}"] = numpy.full((300, 28, 28), n, numpy.uint8)
        arrays[f"y_{part}"] = numpy.zeros(300, numpy.uint8)
    numpy.savez(tmp_path / "images.npz", **arrays)
    novelty = importlib.import_module("novelty")
    options = Namespace(data=tmp_path / "images.npz", unusual=None, quick=True)
    images, unusual = novelty.questions(options)
    assert len(images.training) == 270 and len(images.validation()[0]) == 30
    assert torch.equal(unusual["inverted"], 1 - images.new_x)
    assert torch.equal(unusual["on their side"], images.new_x.rot90(1, (2, 3)))
    _, unusual = novelty.questions(Namespace(**{**vars(options), "unusual": options.data}))
    assert float(unusual["images"].max()) == pytest.approx(2 / 255)
