r"""The largest eigenvalues of the Gauss-Newton matrix, from products with vectors alone.

A block Krylov space is grown from random vectors: with V orthonormal and :math:`T = V^T H V`, the
eigenvectors of T give the approximations :math:`u = V y`, whose residuals :math:`H u - \lambda u`
are the next block, orthogonalised against V. A V that gets too large is restarted from the best
approximations: V and H V have at most 6 (rank + 8) columns each. The iteration ends when all
residuals are small:

.. math:: \|H u_k - \lambda_k u_k\| \le \mathrm{tolerance} \cdot \lambda_1 .
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Observed, Output
from lapkernels.curvature.data.contents import Parameters, fingerprint
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.quantities.ggn_product import GaussNewton, Method
from lapkernels.curvature.quantities.loop import OutputFactor
from lapkernels.curvature.results.decompositions import retried
from lapkernels.curvature.results.summary import Summary, slices_of
from lapkernels.likelihoods import resolve

# Oversampling: vectors beyond the rank speed up convergence.
EXTRA = 8
# Columns of V, in blocks, before a restart.
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
    method: Method = "exact",
    *,
    params: Parameters = None,
    output: Output = None,
    samples: int = 1,
    tolerance: float | None = None,
    max_sweeps: int = 200,
    memory_budget: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    explain: bool = False,
) -> LowRank:
    """The ``rank`` largest eigenvalues of the Gauss-Newton matrix, and their eigenvectors.

    ``data`` is read once for each block of products. With ``method="mc"`` the matrix is that of
    ``samples`` scores at labels drawn from the model, the same in every reading if the batches come
    in the same order; with ``"empirical"`` that of the scores at the true labels. ``tolerance``
    bounds the residuals relative to the largest eigenvalue; it is the root of the dtype's precision
    if not given. ``explain`` prints how many vectors are held and go through the model at once.
    """
    if isinstance(Observed.of(data).data, Iterator):
        raise ValueError("data is an iterator, but it is read many times: give a list or loader")
    factor = OutputFactor(resolve(likelihood), method, samples, generator=generator)
    operator = GaussNewton(model, data, factor, params, output, memory_budget, progress)
    size = operator.size
    if not 1 <= rank <= size:
        raise ValueError(f"rank={rank}: 1 to {size}, the number of parameters, are possible")
    like = next(iter(operator.chosen.values())).detach()
    bound = torch.finfo(like.dtype).eps ** 0.5 if tolerance is None else tolerance
    width = min(size, rank + EXTRA)
    start = torch.randn(size, width, generator=generator, dtype=like.dtype, device=like.device)
    together = operator.together
    start = together.first("the start of low_rank", torch.linalg.qr(start).Q)
    values, vectors, residuals = largest_eigenvalues(
        operator.columns, start, rank, bound, max_sweeps
    )
    if explain and together.rank == 0:
        print(_explanation(operator, width))
    summary = Summary(operator.count, fingerprint(operator.chosen), method)
    found = LowRank(vectors, values, residuals, slices_of(operator.chosen), summary)
    # All processes have the same result, up to rounding between machines.
    return together.first("the end of low_rank", found)


def _explanation(operator: GaussNewton, width: int) -> str:
    """The explanation of a search with blocks of ``width`` vectors."""
    size = next(iter(operator.chosen.values())).element_size()
    held = 2 * min(operator.size, BLOCKS * width)
    return (
        f"{operator.size} parameters, {operator.count} samples, {operator.sweeps} sweeps over the "
        f"data\nblocks of {width} vectors, of which {min(operator.step, width)} go through the "
        f"model at once: J v forward, J^T back\n"
        f"up to {held} vectors held, {held * operator.size * size / 1e6:.3g} MB"
    )


@torch.no_grad()
def largest_eigenvalues(
    product: Callable[[Tensor], Tensor], start: Tensor, rank: int, tolerance: float, sweeps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues [K], eigenvectors [P, K] and residuals [K] of a positive semi-definite operator.

    ``start`` [P, b] is orthonormal, b >= K.
    """
    size, width = start.shape
    # Vectors are rows here, contiguous in memory.
    space, mapped = start.new_empty(2, min(size, BLOCKS * width), size)
    count, block = 0, start.T
    worst = float("inf")
    for _ in range(sweeps):
        new = slice(count, count + len(block))
        space[new], mapped[new], count = block, product(block.T).T, new.stop
        basis, images = space[:count], mapped[:count]
        matrix = _symmetric(basis @ images.T)
        values, rotation = retried(torch.linalg.eigh, matrix, "the curvature", "has no eigenvalues")
        values = values.flip(0).clamp_min(0)
        # A thick restart: it keeps a few vectors beyond the rank.
        kept = min(count, width)
        rotation = rotation.flip(1)[:, :kept].T
        vectors, block = rotation @ basis, rotation @ images
        block.sub_(vectors * values[:kept].unsqueeze(1))
        residuals = block.norm(dim=1)
        worst = float(residuals[:rank].max())
        done = worst <= tolerance * float(values[0]) or count == size
        if not done and count + width > BLOCKS * width:
            mapped[:kept], space[:kept], count = rotation @ images, vectors, kept
        if not done:
            block = _orthogonal(block, space[:count])
        if done or len(block) == 0:
            return values[:rank], vectors[:rank].T.contiguous(), residuals[:rank]
    raise Refused(
        f"after max_sweeps={sweeps} sweeps over the data a residual is {worst:.1e}, more than "
        f"tolerance={tolerance:.1e} times the largest eigenvalue; raise one of them"
    )


def _orthogonal(block: Tensor, basis: Tensor) -> Tensor:
    """Orthonormal rows that extend the orthonormal rows of ``basis`` to the span with ``block``."""
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
