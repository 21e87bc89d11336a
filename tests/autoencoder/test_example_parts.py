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


def test_whitened_images_are_uncorrelated(beside: None) -> None:
    x = torch.rand(50, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    # A pixel that never changes has no component.
    x[:, :, 0, 0] = 0.5
    layer = importlib.import_module("networks").whitening(x, 99)
    z = layer.double()(x.flatten(1))
    assert z.shape == (50, 15) and not any(p.requires_grad for p in layer.parameters())
    assert torch.allclose(z.mean(0), torch.zeros(15).double(), atol=1e-4)
    assert torch.allclose(z.T.cov(), torch.eye(15).double(), atol=1e-3)


def test_unusual_images_of_the_novelty_example(beside: None, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    for n, part in PARTS:
        arrays[f"x_{part}"] = numpy.full((300, 28, 28), n, numpy.uint8)
        arrays[f"y_{part}"] = numpy.zeros(300, numpy.uint8)
    numpy.savez(tmp_path / "images.npz", **arrays)
    novelty = importlib.import_module("novelty")
    shown = {
        name: novelty.questions(Namespace(data=data, unusual=unusual, quick=True))
        for name, data, unusual in (
            ("digits on their side", None, None),
            ("digits, enlarged", tmp_path / "images.npz", None),
            ("another file", tmp_path / "images.npz", tmp_path / "images.npz"),
        )
    }
    images, unusual = shown["digits on their side"]
    assert torch.equal(unusual, images.new_x.rot90(1, (2, 3)))
    images, unusual = shown["digits, enlarged"]
    # Held-out training images, so that nothing is chosen on test images.
    assert float(images.new_x.min()) == float(images.new_x.max()) == pytest.approx(1 / 255)
    assert len(images.x) == 240 and unusual.shape == images.new_x.shape == (60, 1, 28, 28)
    images, unusual = shown["another file"]
    assert float(images.new_x.max()) == float(unusual.max()) == pytest.approx(2 / 255)
