"""The columns s at the outputs that a method pulls back: all, drawn ones, or those of labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lapkernels.curvature.backward.columns import Collector
from lapkernels.curvature.data.batches import check_choice
from lapkernels.curvature.passes.passes import Pass
from lapkernels.likelihoods import Likelihood

Sampler = Literal["labels", "signs"]


class ColumnSum(Collector):
    """A collector that sums over batches."""

    def begin(self, one: Pass) -> Pass:
        """Called with the pass before its columns."""
        return one


@dataclass(frozen=True)
class OutputFactor:
    """A factor of the output Hessian, H_n = sum_v s_{n,v} s_{n,v}ᵀ, or one of an estimate of it.

    ``method`` "exact" has all columns of the likelihood's factor; "mc" so many ``samples``, scores
    at labels drawn from the model or columns with random signs; "empirical" the score at the label.
    """

    likelihood: Likelihood
    method: str
    samples: int = 1
    sampler: Sampler = "labels"
    generator: torch.Generator | None = None
    # With the method "mixed": values of at most so many features have columns, others a diagonal.
    threshold: float = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples={self.samples} must be positive")
        check_choice("sampler", self.sampler, Sampler)

    def pull(self, one: Pass, collector: Collector) -> None:
        """Pull the columns of a batch back to a collector."""
        f, y = one.prediction, one.target
        if self.method == "exact":
            one.pull_quadratic(self.likelihood.columns(f, y), collector)
            return
        count = self.samples if self.method == "mc" else 1
        one.pull(count, lambda first, last: self.scores(f, y, last - first), collector)

    def scores(self, f: Tensor, y: Any, count: int) -> Tensor:
        """The next ``count`` columns [V, N, *out] of a method that is not "exact"."""
        if self.method == "empirical":
            return self.likelihood.score(f, with_labels(y, "method 'empirical' needs")).unsqueeze(0)
        if self.sampler == "signs":
            columns = self.likelihood.columns(f, y)
            parts = [columns.signs(self.generator) for _ in range(count)]
        else:
            parts = [self.likelihood.sampled_column(f, self.generator, y) for _ in range(count)]
        return torch.cat(parts) / self.samples**0.5

    def product(self, f: Tensor, y: Any) -> Callable[[Tensor], Tensor]:
        """The function that takes v [K, N, *out] to H_n v_n, for a batch."""
        if self.method == "exact":
            return lambda v: self.likelihood.product(f, v, y)
        s = self.scores(f, y, self.samples).flatten(2)

        def product(v: Tensor) -> Tensor:
            inner = torch.einsum("sno,kno->skn", s, v.flatten(2))
            return torch.einsum("skn,sno->kno", inner, s).reshape(v.shape)

        return product


def with_labels(y: Any, needed: str) -> Any:
    """The labels, or an error that says what needs them."""
    if y is None:
        raise ValueError(f"{needed} labels: give batches (inputs, labels)")
    return y
