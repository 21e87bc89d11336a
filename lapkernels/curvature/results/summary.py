"""Results: sums over samples, with what is checked when they are added."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from lapkernels.curvature.data.contents import fingerprint
from lapkernels.curvature.errors import Refused
from lapkernels.likelihoods import Likelihood
from lapkernels.ops.base.checks import expect_finite

T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """What a result is a sum over: the samples, the model, the method."""

    count: int
    fingerprint: str
    method: str

    @classmethod
    def of(
        cls, count: int, chosen: Mapping[str, Tensor], method: str, likelihood: Likelihood
    ) -> Summary:
        """The summary of a sum over ``count`` samples; the method has the likelihood's settings."""
        return cls(count, fingerprint(chosen), f"{method}, {likelihood!r}")

    def merged(self, other: Summary) -> Summary:
        """The summary of the sum of two results."""
        if self.fingerprint != other.fingerprint:
            raise ValueError("the results belong to different models, or to other parameter values")
        if self.method != other.method:
            raise ValueError(f"the results are of methods {self.method!r} and {other.method!r}")
        return replace(self, count=self.count + other.count)


@dataclass(frozen=True)
class ByName(Mapping[str, T]):
    """A value for each name, summed over ``summary.count`` samples."""

    entries: dict[str, T]
    summary: Summary

    def __getitem__(self, name: str) -> T:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        shapes = "".join(f"\n  {name}: {_shape(value)}" for name, value in self.items())
        return f"{type(self).__name__} of {self.count} samples, {self.summary.method}:{shapes}"

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.summary.count


def _shape(value: object) -> str:
    """A tensor by its shape and range, other things by their type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if not value.numel():
        return str(list(value.shape))
    low, high = (float(bound) for bound in value.detach().aminmax())
    return f"{list(value.shape)} from {low:.3g} to {high:.3g}"


@dataclass(frozen=True, repr=False)
class Diagonal(ByName[Tensor]):
    """The diagonal of a curvature matrix: one tensor for each parameter, of its shape.

    A diagonal that was sampled to a tolerance has the standard error of the sum of each parameter's
    entries; others have none.
    """

    standard_errors: dict[str, float] = field(default_factory=dict)

    def vector(self) -> Tensor:
        """All entries in the order of ``torch.nn.utils.parameters_to_vector``."""
        return torch.cat([value.flatten() for value in self.values()])

    def merge(self, other: Diagonal) -> Diagonal:
        """The sum over both data sets."""
        summary = self.summary.merged(other.summary)
        one, two = self.standard_errors, other.standard_errors
        if one.keys() != two.keys():
            raise ValueError("only one of the two diagonals was sampled to a tolerance")
        errors = {name: math.hypot(value, two[name]) for name, value in one.items()}
        return Diagonal(
            {name: value + other[name] for name, value in self.items()}, summary, errors
        )


def finite(values: Mapping[str, Tensor], kind: str = "curvature") -> dict[str, Tensor]:
    """The values; raises if one has overflowed."""

    def explain() -> None:
        for name, value in values.items():
            if not bool(value.isfinite().all()):
                raise Refused(
                    f"the {kind} of {name} is not finite: numbers in the backward pass, or their "
                    f"squares, are too large for {value.dtype}. Scale the inputs, or give the "
                    "model and its inputs in float64"
                )

    if values:
        expect_finite(torch.stack([value.sum() for value in values.values()]).sum(), explain)
    return dict(values)


def by_name(flat: Tensor, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """[L.., *shape] for each name, of [L.., P] in the order of ``parameters_to_vector``."""
    pieces = flat.split([math.prod(shape) for shape in shapes.values()], -1)
    pairs = zip(shapes.items(), pieces, strict=True)
    return {name: piece.reshape((*piece.shape[:-1], *shape)) for (name, shape), piece in pairs}


def slices_of(parameters: Mapping[str, Tensor]) -> dict[str, slice]:
    """Where each parameter lies in the order of ``torch.nn.utils.parameters_to_vector``."""
    found: dict[str, slice] = {}
    start = 0
    for name, parameter in parameters.items():
        found[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return found
