"""Boxes of the detector's example: targets, corners, what counts as wrong, and its spreads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example, which finds the modules beside it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import detector  # pyright: ignore[reportMissingImports]

    yield detector
    for name in ("detector", "scenes", "common"):
        sys.modules.pop(name, None)


def test_targets_decode_to_the_boxes(detector: Any) -> None:
    grid, one = detector.anchors(), detector.scene(3)
    labels, offsets, mask = detector.targets(one, grid)
    model = detector.Detector(2)
    assert model(one.image.unsqueeze(0))["logits"].shape == (1, 4, len(grid))
    matched = mask[0] > 0
    assert set(labels[matched].tolist()) == set(one.labels.tolist())
    found = detector.decoded(offsets, grid)[matched]
    shared = detector.overlap(found, one.boxes).max(1).values
    torch.testing.assert_close(shared, torch.ones_like(shared), rtol=1e-4, atol=1e-4)


def test_overlap_and_mistakes(detector: Any) -> None:
    a = torch.tensor([[0.0, 0, 4, 4], [2, 0, 6, 4], [50, 50, 60, 60]])
    shared = detector.overlap(a, a)
    torch.testing.assert_close(shared[0], torch.tensor([1.0, 1 / 3, 0.0]))
    truth = detector.Scene(torch.zeros(3, 64, 128), a[:1], torch.tensor([1]))
    boxes = detector.Boxes(
        torch.arange(4),
        torch.tensor([1, 1, 2, 1]),
        torch.tensor([0.9, 0.8, 0.95, 0.7]),
        torch.stack([a[0], a[0], a[0], a[2]]),
    )
    # Right; the same thing again; another class; nothing there.
    assert detector.wrong(boxes, truth).tolist() == [False, True, True, True]


def test_spreads_of_nearly_certain_weights_agree(
    detector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns are exact for small variances, so that many draws come out the same."""
    monkeypatch.setattr(detector, "DRAWS", 400)
    model, x = detector.Detector(2).eval(), detector.scene(1).image.unsqueeze(0)
    variance = {name: torch.full_like(p, 1e-8).detach() for name, p in model.named_parameters()}
    boxes = detector.Boxes(
        torch.tensor([5, 280]),
        torch.tensor([1, 3]),
        torch.ones(2),
        torch.tensor([[0.0, 0, 9, 9]] * 2),
    )
    wanted = detector.by_columns(model, x, boxes, variance)
    found = detector.by_draws(model, x, boxes, detector.drawn(model, variance))
    # Five standard errors of a standard deviation over 400 draws.
    assert float((found.score / wanted.score - 1).abs().max()) < 5 / 800**0.5
    assert float((found.box / wanted.box - 1).abs().max()) < 5 / 800**0.5
    logits = model(x)["logits"].detach()
    passed = detector.passed_forward(model, x, logits, boxes, variance)
    # Dropped correlations change the width, not its order of magnitude.
    assert float((passed.score / wanted.score).log().abs().max()) < 1.5
