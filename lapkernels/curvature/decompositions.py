"""Decompositions of symmetric matrices that are tried again in float64 before they are refused."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lapkernels.curvature.errors import Refused


def eigen(matrix: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues [.., P], not negative, and eigenvectors of positive semi-definite matrices.

    Negative eigenvalues that rounding explains become zero; larger ones are refused, with ``what``
    the matrix is.
    """
    values, vectors = _twice(torch.linalg.eigh, matrix, f"{what} has no eigenvalues")
    largest = values.abs().amax(-1, keepdim=True)
    slack = 10 * matrix.shape[-1] * torch.finfo(matrix.dtype).eps * largest
    if bool((values < -slack).any()):
        raise Refused(
            f"{what} has the negative eigenvalue {float(values.min()):.3g}: it is no curvature of "
            "a minimum. A Gauss-Newton matrix (method='exact') never has one"
        )
    return values.clamp_min(0), vectors.contiguous()


def cholesky(matrix: Tensor, what: str) -> Tensor:
    """L with L Lᵀ = matrix, [.., P, P], refused with ``what`` the matrix is if it has none."""
    advice = (
        f"{what} is not positive definite: raise the prior precision; if it is a Hessian, train "
        "closer to a minimum or use a Gauss-Newton method (method='exact')"
    )
    (factor,) = _twice(lambda m: (torch.linalg.cholesky(m),), matrix, advice)
    return factor


def _twice(
    decompose: Callable[[Tensor], tuple[Tensor, ...]], matrix: Tensor, message: str
) -> tuple[Tensor, ...]:
    """A decomposition in the matrix's dtype or, if that fails, in float64."""
    if not bool(matrix.isfinite().all()):
        raise Refused(f"{message}, as it has entries that are not finite")
    for dtype in (matrix.dtype, torch.float64):
        try:
            found = tuple(decompose(matrix.to(dtype)))
        except torch.linalg.LinAlgError:
            continue
        if all(bool(part.isfinite().all()) for part in found):
            return tuple(part.to(matrix.dtype) for part in found)
    raise Refused(message)
