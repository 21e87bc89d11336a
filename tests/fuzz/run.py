"""Many models one after the other, and what became of them."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field

import lapkernels as lk
from tests.fuzz.judge import Outcome, outcome
from tests.fuzz.models import Model, draw
from tests.fuzz.shrink import Cause, shrink


@dataclass
class Report:
    """Counts of verdicts, reasons of refusals, and what made models fail."""

    route: str
    verdicts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    causes: list[Cause] = field(default_factory=list)

    def judge(self, model: Model) -> Outcome:
        """Every third model by the whole matrix too, every tenth by the reference backend."""
        reference = self.route == "auto" and model.seed % 10 == 0
        with lk.use_backend("reference") if reference else nullcontext():
            return outcome(*model.make(), self.route, model.seed % 3 == 0)

    def add(self, model: Model) -> None:
        found = self.judge(model)
        self.verdicts[found.verdict] += 1
        if found.verdict == "refused":
            self.refusals[found.kind] += 1
        if found.fails:
            for cause in self.causes:
                if cause.explains(model, found, self.judge):
                    cause.count += 1
                    return
            self.causes.append(Cause(*shrink(model, found, self.judge)))

    @property
    def right(self) -> float:
        """The share of models that are right."""
        return self.verdicts["right"] / (self.verdicts.total() - self.verdicts["discarded"])

    def __str__(self) -> str:
        lines = [f"route {self.route}: {dict(self.verdicts)}"]
        lines += [f"refused, {count} models: {words}" for words, count in self.refusals.items()]
        for cause in sorted(self.causes, key=lambda cause: -cause.count):
            found = cause.outcome
            lines.append(f"\n# {found.verdict}, {cause.count} models: {found.quantity}")
            lines += [f"# {line}" for line in found.words.splitlines()]
            lines.append(cause.model.program(self.route))
        return "\n".join(lines)


def run(seed: int, count: int, route: str, kinds: tuple[str, ...] = (), show: int = 0) -> Report:
    """So many models from a seed on; with ``show`` says now and then how far it is."""
    report = Report(route)
    for number in range(seed, seed + count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report.add(draw(number, kinds))
        if show and (number - seed + 1) % show == 0:
            done = f"{number - seed + 1} of {count}: {dict(report.verdicts)}"
            print(done, f"{len(report.causes)} causes", file=sys.stderr, flush=True)
    return report
