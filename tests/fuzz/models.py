"""Models as data: sizes and steps, from which the source of a module is made and run."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint

from tests.fuzz import pieces
from tests.fuzz.steps import FREQUENCY, STEPS

NAMES = {"torch": torch, "nn": nn, "F": F, "checkpoint": checkpoint, **vars(pieces)}
PROGRAM = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from tests.fuzz.judge import outcome
from tests.fuzz.pieces import *

{source}

torch.manual_seed({seed})
model = Network().double().eval()
generator = torch.Generator().manual_seed({seed})
x = torch.randn({shape}, dtype=torch.float64, generator=generator)
ids = torch.randint(5, ({count}, 2), generator=generator)
print(outcome(model, ({inputs}), {route!r}))
"""
LARGEST = 40  # entries of a sample
OUTPUTS = 6


@dataclass(frozen=True)
class Step:
    """A line of the table, with numbers for its sizes, its places and what it refers to."""

    kind: str
    text: str
    numbers: tuple[int, int, int]


@dataclass(frozen=True)
class Model:
    """Steps from inputs [count, *sizes] to a few outputs. The seed is of parameters and inputs."""

    seed: int
    count: int
    sizes: tuple[int, ...]
    steps: tuple[Step, ...] = ()

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Numbers, and indices that are a second input of models with embeddings."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.count, *self.sizes)
        x = torch.randn(shape, dtype=torch.float64, generator=generator)
        return x, torch.randint(5, (self.count, 2), generator=generator)

    def make(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The module and its inputs, from its source."""
        source, space = Writer(self).source(), dict(NAMES)
        exec(source, space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = space["Network"]().double().eval()
        return model, self.inputs() if ", ids):" in source else self.inputs()[:1]

    def program(self, route: str) -> str:
        """A file that makes the model and prints what becomes of it."""
        source = Writer(self).source()
        return PROGRAM.format(
            source=source,
            seed=self.seed,
            shape=", ".join(map(str, (self.count, *self.sizes))),
            count=self.count,
            inputs="x, ids" if ", ids):" in source else "x,",
            route=route,
        )


class Invalid(Exception):
    """A step that cannot follow those before it."""


class Writer:
    """Writes the source of a model step by step, running it so that sizes are known."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.steps: list[Step] = []
        self.held: dict[str, str] = {}
        self.module = nn.Module()
        self._blocks: list[list[str]] = []
        self._referred: set[int] = set()
        self._run()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(model.seed)
            for step in model.steps:
                self.add(step)
            size = self.space["h"][0].numel()
            self._tail = "h" if size <= OUTPUTS else f"h.flatten(1)[:, :{OUTPUTS}]"
            if size > OUTPUTS and model.seed % 2:
                self._tail = f"self.{self._hold(f'nn.Linear({size}, 3)', False)}(h.flatten(1))"

    def _run(self) -> None:
        """Run what is written. `h`, and what it was after each step, are real values."""
        x, ids = self.model.inputs()
        self.space: dict[str, Any] = {**NAMES, "self": self.module, "h": x, "v0": x, "ids": ids}
        self._values = [x]
        for lines in self._blocks:
            self._run_block(lines)

    def _run_block(self, lines: list[str]) -> None:
        for line in lines:
            exec(line, self.space)
        self.space[f"v{len(self._values)}"] = self.space["h"]
        self._values.append(self.space["h"])

    def add(self, step: Step) -> bool:
        """Write a step, if it can be taken."""
        held, referred = dict(self.held), set(self._referred)
        try:
            lines = self._lines(step)
            self._run_block(lines)
            self._check()
        except Exception:
            for name in self.held.keys() - held:
                delattr(self.module, name)
            self.held, self._referred = held, referred
            self._run()
            return False
        self._blocks.append(lines)
        self.steps.append(step)
        return True

    def _check(self) -> None:
        """Small, finite, and something that autograd can differentiate."""
        h, parameters = self.space["h"], list(self.module.parameters())
        fits = h.dtype == torch.float64 and 1 < h.dim() < 5 and len(h) == self.model.count
        if not fits or not 0 < h[0].numel() <= LARGEST or not h.abs().max() < 1e3:
            raise Invalid
        if h.requires_grad:
            for g in grad(h.sum(), parameters, retain_graph=True, allow_unused=True):
                if g is not None and not g.to_dense().abs().max() < 1e4:
                    raise Invalid

    def _lines(self, step: Step) -> list[str]:
        h, (k, j, r) = self.space["h"], step.numbers
        c, f = h.shape[1], h.shape[-1]
        text = step.text
        if text[0].isdigit():
            if int(text[0]) != h.dim():
                raise Invalid
            text = text[2:]
        names = {"C": c, "F": f, "G": f // 2 + 1, "k": 1 + k % 4}
        names |= {"i": j % c, "p": 1 + j % c, "f": j % f, "q": 1 + j % f}
        for name, fits in (("v", [v.shape == h.shape for v in self._values]), ("w", None)):
            if f"{{{name}}}" in text:
                names[name] = self._refer(fits or [True] * len(self._values), r)
        own: list[str] = []

        def hold(found: re.Match[str]) -> str:
            own.append(self._hold(_with(found[1], own), r % 3 == 0))
            return f"self.{own[-1]}"

        return _with(re.sub("`(.*?)`", hold, text.format_map(names)), own).split("; ")

    def _refer(self, fits: list[bool], number: int) -> str:
        """The name of an earlier value."""
        among = [index for index, fit in enumerate(fits) if fit] or [len(fits) - 1]
        index = among[number % len(among)]
        self._referred.add(index)
        return f"v{index}"

    def _hold(self, source: str, shared: bool) -> str:
        """The name of a module or parameter, of one that the model has already if it may be."""
        if re.fullmatch(r"\(\)|\d+(, \d+)*", source):
            source = f"parameter({source.strip('()')})"
        if shared and source in self.held.values():
            return next(name for name, known in self.held.items() if known == source)
        name = f"a{len(self.held)}"
        made = eval(source, self.space)
        setattr(self.module, name, made.double().eval() if isinstance(made, nn.Module) else made)
        self.held[name] = source
        return name

    def source(self) -> str:
        body = ["h = v0 = x" if 0 in self._referred else "h = x"]
        for index, lines in enumerate(self._blocks, start=1):
            body += lines + ([f"v{index} = h"] if index in self._referred else [])
        ids = ", ids" if any(re.search(r"\bids\b", line) for line in body) else ""
        held = [f"self.{name} = {source}" for name, source in self.held.items()]
        return "\n        ".join(
            ["class Network(nn.Module):\n    def __init__(self):", "super().__init__()", *held]
        ) + "\n        ".join(
            [f"\n\n    def forward(self, x{ids}):", *body, f"return {self._tail}"]
        )


def _with(text: str, own: list[str]) -> str:
    return re.sub(r"@(\d)", lambda found: f"self.{own[int(found[1])]}", text)


def draw(seed: int, kinds: tuple[str, ...] = ()) -> Model:
    """A model of some steps, more often of these kinds than of others."""
    rng = random.Random(seed)
    sizes = tuple(rng.randint(1, 4) for _ in range(rng.choice((1, 1, 2, 2, 3))))
    model = Model(seed, rng.randint(1, 5), sizes)
    weights = [FREQUENCY.get(kind, 1.0) + 12 * (kind in kinds) for kind in STEPS]
    writer, wanted = Writer(model), rng.randint(2, 8)
    for _ in range(40):
        if len(writer.steps) == wanted:
            break
        (kind,) = rng.choices(list(STEPS), weights)
        numbers = (rng.randrange(12), rng.randrange(12), rng.randrange(12))
        text = rng.choice(re.split(r" \| |\n", STEPS[kind].strip()))
        with torch.random.fork_rng(devices=[]):
            writer.add(Step(kind, text, numbers))
    return replace(model, steps=tuple(writer.steps))


def simpler(model: Model) -> Iterator[Model]:
    """Models with less in them, those with much less first."""
    steps, length = model.steps, len(model.steps)
    while length:
        for start in range(0, len(steps), length):
            yield replace(model, steps=steps[:start] + steps[start + length :])
        length //= 2
    if model.count > 1:
        yield replace(model, count=1)
        yield replace(model, count=model.count - 1)
    for index, size in enumerate(model.sizes):
        before, after = model.sizes[:index], model.sizes[index + 1 :]
        if after or before:
            yield replace(model, sizes=before + after)
        if size > 1:
            yield replace(model, sizes=(*before, 1, *after))
            yield replace(model, sizes=(*before, size - 1, *after))
    for index, step in enumerate(steps):
        # The last number of 1 shares nothing with other steps, and refers to what is near.
        for numbers in ((0, 0, 1), (0, *step.numbers[1:]), (*step.numbers[:2], 1)):
            if numbers != step.numbers:
                less = replace(step, numbers=numbers)
                yield replace(model, steps=(*steps[:index], less, *steps[index + 1 :]))
