"""The loop over batches: each is run once, checked and counted before a quantity adds its share.

And the columns s at the outputs that a method pulls back: all, drawn ones, or those of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.columns import Collector
from lapkernels.curvature.data.batches import Observed, Output, check_choice, input_batches
from lapkernels.curvature.data.contents import Parameters
from lapkernels.curvature.passes.explain import explanation
from lapkernels.curvature.passes.passes import Pass, Route, passes
from lapkernels.curvature.recording.replay import KeepsGraph
from lapkernels.curvature.recording.targets import check_outputs
from lapkernels.curvature.results.summary import Summary
from lapkernels.likelihoods import Likelihood
from lapkernels.likelihoods.likelihood import Signs
from lapkernels.ops.base.checks import expect, expect_finite, gathered

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
    at labels drawn from the model or sums of columns with random signs; "empirical" the score at
    the label.
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
        if self.method == "exact":
            columns = self.likelihood.columns(one.prediction, one.target)
            one.pull_quadratic(columns, collector)
            return
        count = self.samples if self.method == "mc" else 1
        one.pull(count, self.drawn(one.prediction, one.target), collector)

    def drawn(self, f: Tensor, y: Any) -> Callable[[int, int], Tensor]:
        """The function that makes columns first <= v < last, if the method is not "exact"."""
        likelihood, scale = self.likelihood, self.samples**-0.5
        if self.method == "empirical":
            score = likelihood.score(f, with_labels(y, "method 'empirical' needs")).unsqueeze(0)
            return lambda first, last: score
        if self.sampler == "labels":

            def scores(first: int, last: int) -> Tensor:
                parts = [
                    likelihood.sampled_column(f, self.generator, y) for _ in range(first, last)
                ]
                return torch.cat(parts) * scale

            return scores
        columns = likelihood.columns(f, y)
        signs = Signs((len(f), columns.signed), self.generator, f.device)
        return lambda first, last: columns.combined(signs.draws(first, last, f.dtype)) * scale

    def product(self, f: Tensor, y: Any) -> Callable[[Tensor], Tensor]:
        """The function that takes v [K, N, *out] to H_n v_n, for a batch."""
        if self.method == "exact":
            return lambda v: self.likelihood.product(f, v, y)
        s = self.drawn(f, y)(0, self.samples).flatten(2)

        def product(v: Tensor) -> Tensor:
            inner = torch.einsum("sno,kno->skn", s, v.flatten(2))
            return torch.einsum("skn,sno->kno", inner, s).reshape(v.shape)

        return product


def with_labels(y: Any, needed: str) -> Any:
    """The labels, or an error that says what needs them."""
    if y is None:
        raise ValueError(f"{needed} labels: give batches (inputs, labels)")
    return y


class Loop:
    """A pass for each batch, whose outputs and labels suit the likelihood; the first is explained.

    ``chosen`` are the parameters, ``count`` the samples of the passes that are done.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        factor: OutputFactor,
        params: Parameters,
        output: Output,
        memory_budget: int | None,
        progress: bool,
        route: Route,
        *,
        explain: bool = False,
        keep_graph: KeepsGraph = False,
    ) -> None:
        self.factor, self._observed = factor, Observed.of(data)
        self._explain = explain
        self.chosen, self._passes = passes(
            model,
            self._observed.data,
            params,
            output,
            memory_budget,
            progress,
            route,
            keep_graph=keep_graph,
            by_op=factor.method == "mixed",
        )
        self.count = 0

    def __iter__(self) -> Iterator[Pass]:
        return self._begun(lambda one: one)

    def _begun(self, begin: Callable[[Pass], Pass]) -> Iterator[Pass]:
        factor = self.factor
        for checked in self._passes:
            check_outputs(factor.likelihood, checked.prediction, checked.batch)
            self._observed.see(checked.prediction, checked.target)
            one = begin(checked)
            if self._explain and self.count == 0:
                options = (factor.method, factor.samples, factor.threshold)
                print(explanation(one, factor.likelihood, *options))
            yield one
            self.count += one.count

    def add_to(self, total: ColumnSum) -> None:
        """Pull the factor's columns of all batches back to a sum."""
        for one in self._begun(total.begin):
            self.factor.pull(one, total)

    def summary(self, method: str) -> Summary:
        """The summary of the result."""
        return Summary.of(self.count, self.chosen, method, self.factor.likelihood)


class OutputLoop:
    """A pass for each batch of inputs, with the selected flat outputs [N, k].

    ``outputs`` is None for all of them, [k] for all samples or [N, k] for each sample of all
    batches, one after the other. Outputs have to be finite.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        outputs: Tensor | None,
        params: Parameters,
        output: Output,
        memory_budget: int | None = None,
        progress: bool = False,
        route: Route = "auto",
        *,
        parts: int = 1,
        split: Callable[[Pass], int] | None = None,
    ) -> None:
        self._outputs, self._observed = outputs, input_batches(model, x)
        self.chosen, self._passes = passes(
            model, self._observed.data, params, output, memory_budget, progress, route,
            parts=parts, split=split,
        )  # fmt: skip

    def __iter__(self) -> Iterator[tuple[Pass, Tensor]]:
        done, outputs = 0, self._outputs
        for one in self._passes:
            f = one.prediction
            with gathered():
                expect_finite(f.sum(), partial(_refuse_infinite, f))
                wanted = _wanted(outputs, f.shape[1:].numel(), f.device)
            self._observed.see(f, None)
            if wanted.shape[0] != 1:
                wanted = wanted[done : done + one.count]
                if wanted.shape[0] != one.count:
                    raise ValueError(
                        f"outputs has {done + wanted.shape[0]} rows, but there are more samples"
                    )
            done += one.count
            yield one, wanted.expand(one.count, -1)
        if outputs is not None and outputs.dim() == 2 and outputs.shape[0] != done:
            raise ValueError(f"outputs has {outputs.shape[0]} rows, but there are {done} samples")


def _refuse_infinite(f: Tensor) -> None:
    bad = int(f.isfinite().logical_not().sum())
    if bad:
        raise ValueError(f"{bad} of the model's outputs are not finite: they have no variance")


def unit_columns(f: Tensor, chosen: Tensor) -> Tensor:
    """One at output ``chosen`` [N, v] of each sample, zero elsewhere: [v, *f.shape]."""
    s = f.new_zeros(chosen.shape[1], f.shape[0], f.shape[1:].numel())
    return s.scatter_(2, chosen.T.unsqueeze(2), 1.0).reshape(chosen.shape[1], *f.shape)


def _wanted(outputs: Tensor | None, size: int, device: torch.device) -> Tensor:
    if outputs is None:
        return torch.arange(size, device=device).unsqueeze(0)
    if outputs.is_floating_point() or outputs.dtype == torch.bool or outputs.dim() not in (1, 2):
        raise ValueError(
            f"outputs has dtype {outputs.dtype} and shape {tuple(outputs.shape)}: flat indices of "
            "outputs are needed, [k] or [N, k]"
        )
    bad = (outputs < 0) | (outputs >= size)

    def explain() -> None:
        raise ValueError(f"outputs holds {int(outputs[bad][0])}: 0 to {size - 1} are possible")

    expect(bad.logical_not(), explain)
    return (outputs.unsqueeze(0) if outputs.dim() == 1 else outputs).to(device)
