"""What is measured: families of work, their sizes, and the methods that do the same work.

A case is a family at one size. Adding a method, or another package, is one decorated function:

    @jacobian_squared_sum.method("loop over samples")
    def _(s, x, geometry): ...
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["ours", "torch", "peer", "unit"]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Method:
    """One way to do a family's work.

    ``kind`` is ours, plain torch, another package, or a unit that others are counted in; a unit
    does different work and passes no gate. ``setup(*arguments)`` returns what ``run`` is given
    instead of the family's arguments, and is not timed. ``requires`` names an optional module.
    ``limit(size)`` says why the method is not worth running at a size, if it would take minutes or
    more memory than a machine has. ``oracle`` replaces the family's, for a method whose
    quantity is defined differently on purpose.
    """

    name: str
    run: Function
    kind: Kind = "torch"
    setup: Function | None = None
    requires: str | None = None
    limit: Callable[[Any], str | None] | None = None
    oracle: Function | None = None

    @property
    def available(self) -> bool:
        return self.requires is None or importlib.util.find_spec(self.requires) is not None

    def obstacle(self, size: Any) -> str | None:
        """Why the method is not run at this size, or None if it is."""
        if not self.available:
            return "not installed"
        return self.limit(size) if self.limit else None


@dataclass(frozen=True)
class Family:
    """Work of one kind: the arguments at a size, the right result, and methods.

    A size is a frozen dataclass whose ``str`` is the case's label. ``oracle`` computes in float64;
    a method passes if no entry is further from it than ``tolerance`` times the largest entry.
    ``in_place`` says that methods change their arguments, so that the gate gives them copies.
    ``checked(size)`` is a smaller size at which the gate compares, where the oracle would take too
    long. With ``draws`` the methods' results are random with the oracle's as expectation, and the
    gate judges the mean of that many.
    """

    name: str
    sizes: Sequence[Any]
    quick: Any
    make: Callable[[Any, torch.device], tuple[Any, ...]]
    oracle: Function
    tolerance: float
    in_place: bool = False
    checked: Callable[[Any], Any] | None = None
    draws: int = 1
    methods: dict[str, Method] = field(default_factory=dict)

    def method(
        self,
        name: str,
        kind: Kind = "torch",
        *,
        setup: Function | None = None,
        requires: str | None = None,
        limit: Callable[[Any], str | None] | None = None,
        oracle: Function | None = None,
    ) -> Callable[[Function], Function]:
        """Decorator that adds a method."""

        def add(run: Function) -> Function:
            if name in self.methods:
                raise ValueError(f"{self.name} has a method {name!r} already")
            self.methods[name] = Method(name, run, kind, setup, requires, limit, oracle)
            return run

        return add

    def size(self, label: str) -> Any:
        """The size with this label."""
        for size in (*self.sizes, self.quick):
            if str(size) == label:
                return size
        raise KeyError(f"{self.name} has no size {label!r}")


FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Add a family."""
    if family.name in FAMILIES:
        raise ValueError(f"family {family.name!r} is registered already")
    FAMILIES[family.name] = family
    return family


def load() -> Mapping[str, Family]:
    """All families, after importing the modules that define them."""
    for module in (
        *("conv_ops", "pointwise_ops", "forward_ops", "models", "posteriors", "autoencoders"),
        *("compositions", "peers"),
    ):
        importlib.import_module(f"benchmarks.{module}")
    return FAMILIES


def random(seed: int, *shapes: Sequence[int], device: torch.device) -> list[Tensor]:
    """Standard normal tensors; the same numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator).to(device) for shape in shapes]
