"""Decompositions of symmetric matrices, repeated in float64 if they fail."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lapkernels.curvature.errors import Refused


def eigen(matrix: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues [.., P], not negative, and eigenvectors of positive semi-definite matrices.

    Negative eigenvalues that rounding explains become zero; larger ones raise, naming ``what``.
    """
    values, vectors = retried(torch.linalg.eigh, matrix, what, "has no eigenvalues")
    largest = values.abs().amax(-1, keepdim=True)
    slack = 10 * matrix.shape[-1] * torch.finfo(matrix.dtype).eps * largest
    if bool((values < -slack).any()):
        raise Refused(
            f"{what} has the negative eigenvalue {float(values.min()):.3g}: it is no curvature of "
            "a minimum. A Gauss-Newton matrix (method='exact') never has one"
        )
    return values.clamp_min(0), vectors.contiguous()


def cholesky(matrix: Tensor, what: str) -> Tensor:
    """L with L Lᵀ = matrix, [.., P, P]; raises, naming ``what``, if there is none."""
    advice = (
        "is not positive definite: raise the prior precision; if it is a Hessian, train closer to "
        "a minimum or use a Gauss-Newton method (method='exact')"
    )
    (factor,) = retried(lambda m: (torch.linalg.cholesky(m),), matrix, what, advice)
    return factor


def retried(
    decompose: Callable[[Tensor], tuple[Tensor, ...]], matrix: Tensor, what: str, failed: str
) -> tuple[Tensor, ...]:
    """A decomposition in the matrix's dtype or, if that fails, in float64.

    Raises, naming ``what`` ``failed``, if both fail.
    """
    check_finite(matrix, what)
    for dtype in (matrix.dtype, torch.float64):
        try:
            found = tuple(decompose(matrix.to(dtype)))
        except torch.linalg.LinAlgError:
            continue
        if all(bool(part.isfinite().all()) for part in found):
            return tuple(part.to(matrix.dtype) for part in found)
    raise Refused(f"{what} {failed}")


def check_finite(values: Tensor, what: str) -> None:
    """Raise if there are infinities or NaN among the values."""
    if not bool(values.isfinite().all()):
        raise Refused(
            f"{what} has entries that are not finite: inputs or outputs of the model are too large "
            "for their dtype; normalise them"
        )
