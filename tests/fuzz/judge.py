"""What becomes of a model: right, refused or a failure, by autograd's row-by-row Jacobian."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import check, oracle
from tests.curvature.test_untouched import differences, state

Verdict = Literal["right", "refused", "WRONG", "raw error", "changed", "discarded"]
Values = Mapping[str, Tensor]
Inputs = Sequence[Tensor]
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Outcome:
    """A verdict, the quantity that it is about, and more words."""

    verdict: Verdict
    quantity: str = ""
    words: str = ""

    @property
    def fails(self) -> bool:
        return self.verdict in ("WRONG", "raw error", "changed")

    @property
    def kind(self) -> str:
        """The words without names and numbers."""
        words = "" if self.verdict == "WRONG" else self.words
        return re.sub(r"\ba\d+[\w.]*|[\d.e-]*\d", "_", words)

    def like(self, other: Outcome) -> bool:
        """Whether both fail in one way."""
        return self.fails and (self.verdict, self.kind) == (other.verdict, other.kind)


class Quantity(NamedTuple):
    """A name, what finds it with the package, and what it is for a Jacobian."""

    name: str
    find: Callable[[], Values]
    true: Callable[[Tensor], Values]


class Truth:
    """J [N, D, P] of the whole batch by autograd, on the model itself, and the outputs."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self.model = model
        with torch.enable_grad():
            f = model(*(value.clone() for value in inputs))
            rows = oracle.jacobian(f, list(oracle.trainable(model).values()))
        self.f = f.detach()
        self.j = torch.cat([row.flatten(1) for row in rows], 1).unflatten(0, (len(f), -1))

    @property
    def moderate(self) -> bool:
        """Whether outputs depend on parameters beyond rounding, and no number is large."""
        return 1e-7 < float(self.j.abs().max()) < 1e5 and float(self.f.abs().max()) < 1e5

    def errors(self, found: Values, expected: Values) -> dict[str, float]:
        """The largest of each parameter relative to its largest entry, if that is no rounding."""
        assert list(found) == list(expected)
        floor = 1e-5 * float(self.j.square().sum((0, 1)).max())
        return {
            name: float((found[name] - value).abs().max()) / max(float(value.abs().max()), floor)
            for name, value in expected.items()
        }

    def diag(self, matrix: Tensor) -> dict[str, Tensor]:
        return oracle.diag(matrix, self.model)


def quantities(truth: Truth, inputs: Inputs, route: Any, full: bool) -> Iterator[Quantity]:
    """All that is compared."""
    model, f = truth.model, truth.f
    x: Any = inputs if len(inputs) > 1 else inputs[0]

    def diagonals(noise: check.Noise) -> Iterator[Quantity]:
        y = noise.labels(f)
        h, s = noise.hessian(f, y), noise.score(f, y)
        yield Quantity(
            f"exact {noise.name}",
            lambda: lk.diag(model, (x, y), noise.name, route=route),
            lambda j: truth.diag(torch.einsum("ncp,ncd,ndq->pq", j, h, j)),
        )
        yield Quantity(
            f"empirical {noise.name}",
            lambda: lk.diag(model, (x, y), noise.name, "empirical", route=route),
            lambda j: truth.diag(torch.einsum("nc,ncp->np", s, j).square().sum(0).diag()),
        )

    for word in ("gaussian", "categorical"):
        if check.NOISES[word].fits(f):
            yield from diagonals(check.NOISES[word])
    variance = {name: 0.5 + p.detach().square() for name, p in oracle.trainable(model).items()}
    flat = torch.cat([value.flatten() for value in variance.values()])
    yield Quantity(
        "predictive variance",
        lambda: {"": lk.predictive_variance(model, x, variance, route=route)},
        lambda j: {"": (j.square() @ flat).reshape(f.shape)},
    )
    if full:
        yield Quantity(
            "full",
            lambda: {"": lk.full(model, (x, None), route=route).matrix},
            lambda j: {"": torch.einsum("ncp,ncq->pq", j, j)},
        )


def outcome(model: nn.Module, inputs: Inputs, route: str = "auto", full: bool = True) -> Outcome:
    """Of every quantity, up to the first that fails; the model and its inputs stay as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            truth = Truth(model, inputs)
            alone = [
                Truth(model, tuple(value[n : n + 1] for value in inputs))
                for n in range(len(truth.f))
            ]
        except Exception as error:
            return Outcome("discarded", words=str(error))
        f, j = (torch.cat([getattr(one, name) for one in alone]) for name in ("f", "j"))
        if _same(f, truth.f) and not _same(j, truth.j):
            # Behind a straight-through step a branch on the whole batch shows in gradients alone.
            return Outcome("discarded", words="a gradient depends on other samples, no output does")
        if not truth.moderate:
            return Outcome("discarded", words="does not depend on parameters, or too much")
        before = state(model, *inputs)
        for quantity in quantities(truth, inputs, route, full):
            found = _judged(truth, inputs, quantity)
            changed = differences(before, state(model, *inputs))
            if changed:
                return Outcome("changed", quantity.name, ", ".join(changed))
            if found[0] != "right":
                return Outcome(found[0], quantity.name, found[1])
        return Outcome("right")


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-6, atol=1e-6 * float(b.abs().max())))


def _judged(truth: Truth, inputs: Inputs, quantity: Quantity) -> tuple[Verdict, str]:
    try:
        found = quantity.find()
    except lk.Refused as refusal:
        modules = [name for name, _ in truth.model.named_modules() if name]
        names = ["the model", *modules, *oracle.trainable(truth.model)]
        named = any(name in str(refusal) for name in names)
        return "refused" if named else "raw error", str(refusal)
    except Exception as error:
        return "raw error", f"{type(error).__name__}: {error}"
    expected = quantity.true(truth.j)
    errors = truth.errors(found, expected)
    worst = max(errors.values())
    if worst > TOLERANCE:
        # How far the truth moves with the last digits of the inputs.
        moved = [v + 1e-14 * v.sin() if v.is_floating_point() else v for v in inputs]
        other = quantity.true(Truth(truth.model, moved).j)
        if worst > min(1e-5, 100 * max(truth.errors(other, expected).values())):
            wrong = [name for name, error in errors.items() if error > TOLERANCE]
            return "WRONG", f"relative error {worst:.1e} in {', '.join(wrong)}"
    return "right", ""
