"""Products of the Gauss-Newton matrix with vectors, by autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from lapkernels.curvature.by_autograd.products import check_samples, graph_of
from lapkernels.curvature.data.batches import Observed, Output, batches_of, check_choice
from lapkernels.curvature.data.contents import (
    Contents,
    Parameters,
    check_mode,
    parameters_of,
    plain,
)
from lapkernels.curvature.data.processes import Part, processes
from lapkernels.curvature.passes.passes import with_progress
from lapkernels.curvature.quantities.loop import OutputFactor
from lapkernels.curvature.recording.targets import check_outputs, with_targets
from lapkernels.curvature.results.summary import finite
from lapkernels.likelihoods import resolve
from lapkernels.ops.base.chunks import slices

T = TypeVar("T")
Method = Literal["exact", "mc", "empirical"]


def ggn_product(
    model: nn.Module,
    data: Any,
    vector: Tensor | Mapping[str, Tensor],
    likelihood: Any = "gaussian",
    method: Method = "exact",
    *,
    params: Parameters = None,
    output: Output = None,
    samples: int = 1,
    memory_budget: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Tensor | dict[str, Tensor]:
    r"""Product of :math:`\sum_n J_n^T H_n J_n`, or its sampled or empirical sibling, with a vector.

    ``vector`` is [P], or [P, K] for K vectors at once, in the order of ``parameters_to_vector``, or
    a tensor for each parameter by name; the result has the same form.
    """
    factor = OutputFactor(resolve(likelihood), method, samples, generator=generator)
    operator = GaussNewton(model, data, factor, params, output, memory_budget, progress)
    if isinstance(vector, Tensor):
        if vector.dim() not in (1, 2) or vector.shape[0] != operator.size:
            raise ValueError(
                f"vector has shape {tuple(vector.shape)}: [P] or [P, K] with P = {operator.size} "
                "is needed"
            )
        return operator.columns(vector.reshape(operator.size, -1)).reshape(vector.shape)
    if set(vector) != set(operator.chosen):
        raise ValueError(f"vector has entries {list(vector)}, not {list(operator.chosen)}")
    for name, parameter in operator.chosen.items():
        if vector[name].shape != parameter.shape:
            raise ValueError(
                f"vector of {name} has shape {tuple(vector[name].shape)}, not "
                f"{tuple(parameter.shape)}"
            )
    return operator.by_parameter(vector)


class GaussNewton:
    """Products with the Gauss-Newton matrix of all batches."""

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        factor: OutputFactor,
        params: Parameters,
        output: Output,
        budget: int | None,
        progress: bool,
    ) -> None:
        check_choice("method", factor.method, Method)
        self.model = plain(model)
        contents = Contents.of(self.model)
        check_mode(contents)
        self.observed, self.output, self.factor = Observed.of(data), output, factor
        self.chosen = parameters_of(contents, params)
        self.together = processes()
        self.budget, self.progress = budget, progress and self.together.rank == 0
        self.count = self.entries = self.step = self.sweeps = 0
        self.size = sum(p.numel() for p in self.chosen.values())
        self._seed = 0
        if factor.method == "mc":
            device = "cpu" if factor.generator is None else factor.generator.device
            draw = torch.randint(2**62, (), generator=factor.generator, device=device)
            # Several processes draw for different batches.
            self._seed = int(draw) + self.together.rank

    def columns(self, vectors: Tensor) -> Tensor:
        """H V of ``vectors`` [P, K], one sweep over the data."""
        total = torch.zeros_like(vectors)
        return self._sum(total, self._rows(vectors), self._rows(total))

    def by_parameter(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """H v of a vector that has a tensor for each parameter."""
        total = {name: torch.zeros_like(p) for name, p in self.chosen.items()}
        rows = [[found[name].unsqueeze(0) for name in total] for found in (vector, total)]
        return self._sum(total, *rows)

    def _sum(self, total: T, vectors: Sequence[Tensor], rows: Sequence[Tensor]) -> T:
        """Sum ``total``, whose views are ``rows``, over all processes."""
        part = Part(self.observed.data, self.together)
        data = part.data if self.together.size == 1 else part
        what = f"sweep {self.sweeps} of products"
        found = part.sum(what, lambda: {"count": self._add(data, vectors, rows), "total": total})
        finite(dict(zip(self.chosen, rows, strict=True)), "product")
        self.count = found["count"]
        self.sweeps += 1
        return found["total"]

    def _add(self, data: Any, vectors: Sequence[Tensor], total: Sequence[Tensor]) -> int:
        """Add H V of ``vectors`` [K, *shape] to ``total``, each with a tensor by parameter."""
        first, count = self.count == 0, 0
        device = next(iter(self.chosen.values())).device
        # The same random numbers in every sweep over the data.
        factor = replace(self.factor, generator=torch.Generator(device).manual_seed(self._seed))
        batches = with_targets(self.model, batches_of(data))
        for batch in with_progress(batches, self.observed.data) if self.progress else batches:
            with graph_of(self.model, batch, self.chosen, self.output) as graph:
                seen = None
                if first:
                    seen = graph.look(batch.halves())
                    check_outputs(factor.likelihood, seen, batch)
                    self.observed.see(seen, batch.target)
                    self.entries = max(self.entries, graph.entries)
                step = self.step = graph.chunk(self.budget, self.entries)
                jv = graph.product(vectors, step)
                f = graph.f.detach()
                if seen is not None:
                    check_samples(graph, batch, f, seen)
                product = factor.product(f, batch.target)
                for some in slices(len(jv), step):
                    s = product(jv[some])
                    for value, part in zip(total, graph.transposed(s), strict=True):
                        value[some] += part
            count += batch.count
        return count

    def _rows(self, columns: Tensor) -> list[Tensor]:
        """Views [K, *shape] by parameter of columns [P, K]."""
        parts = columns.T.split([p.numel() for p in self.chosen.values()], 1)
        return [
            part.unflatten(1, p.shape) if p.dim() else part.squeeze(1)
            for part, p in zip(parts, self.chosen.values(), strict=True)
        ]
