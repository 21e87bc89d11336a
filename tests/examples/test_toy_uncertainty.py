"""The gap between the data, as posteriors of few weights see it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


def test_posteriors_of_few_weights_are_unsure_in_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    toy = importlib.import_module("toy_uncertainty")
    found = toy.posteriors_of_a_gap(10, 30, 0.02, (0.2,))
    ratios = {name: toy.widening(la) for name, la in found.items() if name != "diagonal"}
    for name in {"toy_uncertainty", "common", "pictures"} - before:
        sys.modules.pop(name, None)
    assert len(ratios) == 5 and min(ratios.values()) > 3, ratios
