"""Random results are refused, in a batch of one too."""

from __future__ import annotations

from typing import Any

import pytest

from lapkernels.rules import RandomResult, builder_of
from lapkernels.rules.chance import _RANDOM
from tests.rules import check
from tests.rules.calls import Case, aten, case, x

CASES: list[Case] = [
    *case("dropout-off", aten.native_dropout.default, lambda: (x(3, 4), 0.5, False)),
    *case("dropout-of-nothing", aten.native_dropout.default, lambda: (x(3, 4), 0.0, True)),
]
REFUSED: dict[str, tuple[Any, ...]] = {
    "rand_like": (),
    "randn_like": (),
    "bernoulli": (),
    "native_dropout": (0.5, True),
    "poisson": (),
}


test_rule = check.each_rule(CASES)


@pytest.mark.parametrize("name", REFUSED)
def test_chance_is_refused(name: str) -> None:
    def args() -> tuple[Any, ...]:
        entry = x(3, 4)
        entry.tensor.abs_().clamp_(max=1)
        return entry, *REFUSED[name]

    for one in case(name, getattr(aten, name).default, args):
        check.refused(one, RandomResult, "random")


@pytest.mark.parametrize("name", _RANDOM)
def test_every_random_op_is_refused(name: str) -> None:
    builder = builder_of(f"aten::{name}")
    assert builder is not None
    with pytest.raises(RandomResult, match="random"):
        builder(None)
