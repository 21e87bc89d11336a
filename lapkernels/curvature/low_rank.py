r"""The largest eigenvalues of the Gauss-Newton matrix, from products with vectors alone.

A block Krylov space is grown from random vectors: with V orthonormal and :math:`T = V^T H V`, the
eigenvectors of T give the approximations :math:`u = V y`, whose residuals :math:`H u - \lambda u`
are the next block, orthogonalised against V. Where V gets too large it is cut down to the best
approximations and goes on from there: V and H V have at most 6 (rank + 8) columns each. It ends
where all residuals are small:

.. math:: \|H u_k - \lambda_k u_k\| \le \mathrm{tolerance} \cdot \lambda_1 .
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.errors import Refused
from lapkernels.curvature.passes import with_progress
from lapkernels.curvature.products import check_samples, graph_of
from lapkernels.curvature.selection import (
    Output,
    Parameters,
    batches_of,
    check_mode,
    parameters_of,
)
from lapkernels.curvature.state import Summary, fingerprint, slices_of
from lapkernels.likelihoods import Likelihood, resolve
from lapkernels.ops.chunks import slices

# Vectors beyond the rank that make the search faster.
EXTRA = 8
# Columns of V, in blocks, before it is cut down.
BLOCKS = 6


@dataclass(frozen=True)
class LowRank:
    """U diag(values) Uᵀ: ``vectors`` [P, K] orthonormal, ``values`` [K] from the largest down.

    ``residuals`` [K] are the norms of H u - λ u; ``slices`` says where each parameter lies in P.
    """

    vectors: Tensor
    values: Tensor
    residuals: Tensor
    slices: dict[str, slice]
    summary: Summary

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.summary.count

    def dense(self) -> Tensor:
        """The matrix [P, P]: for small models."""
        return (self.vectors * self.values) @ self.vectors.T


def low_rank(
    model: nn.Module,
    data: Any,
    rank: int,
    likelihood: Any = "gaussian",
    *,
    params: Parameters = None,
    output: Output = None,
    tolerance: float | None = None,
    max_sweeps: int = 200,
    memory_budget: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> LowRank:
    """The ``rank`` largest eigenvalues of the Gauss-Newton matrix, and their eigenvectors.

    ``data`` is read once for each block of products. ``tolerance`` bounds the residuals relative to
    the largest eigenvalue; it is the root of the dtype's precision if not given.
    """
    if isinstance(data, Iterator):
        raise ValueError("data is an iterator, but it is read many times: give a list or loader")
    operator = GaussNewton(model, data, likelihood, params, output, memory_budget, progress)
    size = operator.size
    if not 1 <= rank <= size:
        raise ValueError(f"rank={rank}: 1 to {size}, the number of parameters, are possible")
    like = next(iter(operator.chosen.values())).detach()
    bound = torch.finfo(like.dtype).eps ** 0.5 if tolerance is None else tolerance
    width = min(size, rank + EXTRA)
    start = torch.randn(size, width, generator=generator, dtype=like.dtype, device=like.device)
    values, vectors, residuals = largest_eigenvalues(
        operator.columns, torch.linalg.qr(start).Q, rank, bound, max_sweeps
    )
    summary = Summary(operator.count, fingerprint(operator.chosen), "exact")
    return LowRank(vectors, values, residuals, slices_of(operator.chosen), summary)


def ggn_product(
    model: nn.Module,
    data: Any,
    vector: Tensor | Mapping[str, Tensor],
    likelihood: Any = "gaussian",
    *,
    params: Parameters = None,
    output: Output = None,
    memory_budget: int | None = None,
    progress: bool = False,
) -> Tensor | dict[str, Tensor]:
    r"""Product of :math:`\sum_n J_n^T H_n J_n` with a vector, without the matrix.

    ``vector`` is [P], or [P, K] for K vectors at once, in the order of ``parameters_to_vector``, or
    a tensor for each parameter by name; the result has the same form.
    """
    operator = GaussNewton(model, data, likelihood, params, output, memory_budget, progress)
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
    total = {name: torch.zeros_like(p).unsqueeze(0) for name, p in operator.chosen.items()}
    operator.add([vector[name].unsqueeze(0) for name in total], list(total.values()))
    return {name: value.squeeze(0) for name, value in total.items()}


class GaussNewton:
    """Products with the Gauss-Newton matrix of all batches."""

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        likelihood: Any,
        params: Parameters,
        output: Output,
        budget: int | None,
        progress: bool,
    ) -> None:
        check_mode(model)
        self.model, self.data, self.output = model, data, output
        self.likelihood: Likelihood = resolve(likelihood)
        self.chosen = parameters_of(model, params)
        self.budget, self.progress = budget, progress
        self.count = self.entries = 0
        self.size = sum(p.numel() for p in self.chosen.values())

    def columns(self, vectors: Tensor) -> Tensor:
        """H V of ``vectors`` [P, K], one sweep over the data."""
        total = torch.zeros_like(vectors)
        self.add(self._rows(vectors), self._rows(total))
        return total

    def add(self, vectors: Sequence[Tensor], total: Sequence[Tensor]) -> None:
        """Add H V of ``vectors`` [K, *shape] to ``total``, each with a tensor by parameter."""
        first, count = self.count == 0, 0
        batches = batches_of(self.data)
        for batch in with_progress(batches, self.data) if self.progress else batches:
            with graph_of(self.model, batch, self.chosen, self.output) as graph:
                seen = None
                if first:
                    seen = graph.look(batch.halves())
                    self.likelihood.check(seen, batch.target)
                    self.entries = max(self.entries, graph.entries)
                step = graph.chunk(self.budget, self.entries)
                jv = graph.product(vectors, step)
                f = graph.f.detach()
                if seen is not None:
                    check_samples(graph, batch, f, seen)
                for some in slices(len(jv), step):
                    s = self.likelihood.product(f, jv[some], batch.target)
                    for value, part in zip(total, graph.transposed(s), strict=True):
                        value[some] += part
            count += batch.count
        self.count = count

    def _rows(self, columns: Tensor) -> list[Tensor]:
        """Views [K, *shape] by parameter of columns [P, K]."""
        parts = columns.T.split([p.numel() for p in self.chosen.values()], 1)
        return [
            part.unflatten(1, p.shape) if p.dim() else part.squeeze(1)
            for part, p in zip(parts, self.chosen.values(), strict=True)
        ]


@torch.no_grad()
def largest_eigenvalues(
    product: Callable[[Tensor], Tensor], start: Tensor, rank: int, tolerance: float, sweeps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues [K], eigenvectors [P, K] and residuals [K] of a positive semi-definite operator.

    ``start`` [P, b] is orthonormal, b >= K.
    """
    size, width = start.shape
    # Vectors are rows in here, next to each other in memory.
    space, mapped = start.new_empty(2, min(size, BLOCKS * width), size)
    count, block = 0, start.T
    worst = float("inf")
    for _ in range(sweeps):
        new = slice(count, count + len(block))
        space[new], mapped[new], count = block, product(block.T).T, new.stop
        basis, images = space[:count], mapped[:count]
        values, turn = torch.linalg.eigh(_symmetric(basis @ images.T))
        values = values.flip(0).clamp_min(0)
        # A little more than the rank is kept, which keeps the restart from losing what it found.
        kept = min(count, width)
        turn = turn.flip(1)[:, :kept].T
        vectors, block = turn @ basis, turn @ images
        block.sub_(vectors * values[:kept].unsqueeze(1))
        residuals = block.norm(dim=1)
        worst = float(residuals[:rank].max())
        done = worst <= tolerance * float(values[0]) or count == size
        if not done and count + width > BLOCKS * width:
            mapped[:kept], space[:kept], count = turn @ images, vectors, kept
        if not done:
            block = _orthogonal(block, space[:count])
        if done or len(block) == 0:
            return values[:rank], vectors[:rank].T.contiguous(), residuals[:rank]
    raise Refused(
        f"after max_sweeps={sweeps} sweeps over the data a residual is {worst:.1e}, more than "
        f"tolerance={tolerance:.1e} times the largest eigenvalue; raise one of them"
    )


def _orthogonal(block: Tensor, basis: Tensor) -> Tensor:
    """Orthonormal rows that span what ``block`` adds to the orthonormal rows of ``basis``."""
    room = basis.shape[1] - len(basis)
    scale = block.norm(dim=1)
    block = block[scale > 0] / scale[scale > 0].unsqueeze(1)
    for _ in range(2):
        block = block - (block @ basis.T) @ basis
        left, strength, _ = torch.linalg.svd(block.T, full_matrices=False)
        known = strength > 10 * torch.finfo(block.dtype).eps ** 0.5
        block = left.T[known][:room]
    return block - (block @ basis.T) @ basis if len(block) else block


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2
