"""Hessians at the outputs from torch's own losses by automatic differentiation."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from lapkernels.likelihoods import Columns, HeteroscedasticGaussian
from lapkernels.likelihoods.likelihood import Signs
from tests.likelihoods.cases import Case, by_name


def drawn(columns: Columns, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """All columns with random signs, [1, N, *out]."""
    signs = Signs((len(f), columns.signed), generator, f.device)
    return columns.combined(signs.draws(0, 1, f.dtype))


def hessian(case: Case) -> Tensor:
    """H [N, P, P] of the case's loss, each sample by itself."""
    return _hessian_by_name(case.name)


@cache
def _hessian_by_name(name: str) -> Tensor:
    case = by_name[name]
    if isinstance(case.likelihood, HeteroscedasticGaussian):
        # Every entry of the Hessian is quadratic in y, so two points at the standard deviation
        # give its expectation exactly.
        mean, log_variance = case.f.chunk(2, case.likelihood.dim)
        sides = [mean + side * (0.5 * log_variance).exp() for side in (-1, 1)]
        return 0.5 * (_hessian(case, sides[0]) + _hessian(case, sides[1]))
    return _hessian(case, case.y)


def _hessian(case: Case, y: Tensor) -> Tensor:
    size = case.f.shape[1:].numel()
    return torch.stack(
        [
            torch.autograd.functional.hessian(
                lambda one, n=n: case.loss(one, y[n : n + 1]), case.f[n : n + 1]
            ).reshape(size, size)  # pyright: ignore[reportAttributeAccessIssue]
            for n in range(len(case.f))
        ]
    )


def factor(columns: Columns) -> Tensor:
    """All columns [N, P, V]."""
    made = columns.chunk(0, columns.count)
    return made.reshape(*made.shape[:2], made.shape[2:].numel()).permute(1, 2, 0)


def gram(columns: Columns) -> Tensor:
    """sum_v s sᵀ, [N, P, P]; summed in float32 at least."""
    s = factor(columns)
    s = s.to(torch.promote_types(s.dtype, torch.float32))
    return s @ s.mT


def assert_close(value: Tensor, wanted: Tensor, tolerance: float = 1e-12) -> None:
    """The largest error is ``tolerance`` of the largest entry; shapes and dtypes are equal."""
    assert value.shape == wanted.shape
    assert value.dtype == wanted.dtype
    scale = wanted.abs().max() if wanted.numel() else torch.tensor(0.0)
    error = (value - wanted).abs().max() if wanted.numel() else torch.tensor(0.0)
    assert error <= tolerance * scale, f"error {error:.3g} of {scale:.3g}"
