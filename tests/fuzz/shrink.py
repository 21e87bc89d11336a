"""The smallest model that fails as a given one does, and failures of one cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.fuzz.judge import Outcome
from tests.fuzz.models import Model, simpler

Judge = Callable[[Model], Outcome]


def shrink(model: Model, found: Outcome, judge: Judge) -> tuple[Model, Outcome]:
    """A model with as little in it as possible that fails in the same way."""
    for less in simpler(model):
        now = judge(less)
        if now.like(found):
            return shrink(less, now, judge)
    return model, found


@dataclass
class Cause:
    """A smallest model, and how many models fail by its steps."""

    model: Model
    outcome: Outcome
    count: int = 1

    def explains(self, model: Model, found: Outcome, judge: Judge) -> bool:
        """Whether the model fails alike, and no more without the steps of the smallest one."""
        if not found.like(self.outcome):
            return False
        texts = {step.text for step in self.model.steps}
        rest = tuple(step for step in model.steps if step.text not in texts)
        return len(rest) < len(model.steps) and not judge(replace(model, steps=rest)).fails
