"""Random models: every curvature is autograd's, or refused with the name of a module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lapkernels.curvature.passes.self_check import unchecked
from lapkernels.rules.activations import Tanh
from tests.fuzz.models import Model, draw
from tests.fuzz.run import Report, run

CHUNK = 25


def check(seed: int, count: int, route: str) -> None:
    report = run(seed, count, route)
    assert not report.causes, str(report)
    assert report.right > 0.8, str(report)


@pytest.mark.parametrize(
    "route, chunk", [("auto", n) for n in range(4)] + [("autograd", 4), ("autograd", 5)]
)
def test_right_or_refused(route: str, chunk: int) -> None:
    check(chunk * CHUNK, CHUNK, route)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
@pytest.mark.parametrize("route", ["auto", "autograd"])
def test_thousands_are_right_or_refused(route: str, chunk: int) -> None:
    check(1000 + 500 * chunk, 500, route)


def test_a_wrong_rule_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tanh.columns

    def twice(self: Any, s: Any, wanted: Any) -> list[Tensor | None]:
        return [None if one is None else 2 * one for one in right(self, s, wanted)]

    monkeypatch.setattr(Tanh, "columns", twice)
    found: list[Model] = []
    with unchecked():  # or passes by this rule are not used
        for seed in range(150):
            causes = [cause.model for cause in run(seed, 1, "auto").causes]
            found += [model for model in causes if any("tanh" in s.text for s in model.steps)]
            if found:
                break
        monkeypatch.undo()
        assert found and len(found[0].steps) <= 3
        assert Report("auto").judge(found[0]).verdict == "right"


@pytest.mark.parametrize("seed", range(20))
def test_the_printed_source_is_the_model(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    model = draw(seed)
    (first, inputs), (second, _) = model.make(), model.make()
    outputs = [network(*(value.clone() for value in inputs)) for network in (first, second)]
    assert torch.equal(*outputs)
    exec(model.program("auto"), {})
    assert "Outcome" in capsys.readouterr().out
