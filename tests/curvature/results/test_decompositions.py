"""Decompositions that fail in float32, or altogether."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lapkernels as lk
from lapkernels.curvature.results.decompositions import cholesky, eigen


def failing(decompose: Callable[[Tensor], Any], dtypes: tuple[torch.dtype, ...]) -> Any:
    """The decomposition, but of matrices of these dtypes it finds none."""

    def tried(matrix: Tensor) -> Any:
        if matrix.dtype in dtypes:
            raise torch.linalg.LinAlgError("did not converge")
        return decompose(matrix)

    return tried


def matrix() -> Tensor:
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    return root @ root.T


@pytest.mark.parametrize("name", ["eigh", "cholesky"])
def test_again_in_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = matrix()
    monkeypatch.setattr(torch.linalg, name, failing(getattr(torch.linalg, name), (torch.float32,)))
    if name == "eigh":
        values, vectors = eigen(a, "a matrix")
        found = (vectors * values) @ vectors.T
    else:
        factor = cholesky(a, "a matrix")
        found = factor @ factor.T
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, a)


def test_refused_if_both_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (torch.float32, torch.float64)
    monkeypatch.setattr(torch.linalg, "eigh", failing(torch.linalg.eigh, both))
    with pytest.raises(lk.Refused, match="a matrix has no eigenvalues"):
        eigen(matrix(), "a matrix")


def test_refused_with_the_reason() -> None:
    with pytest.raises(lk.Refused, match="entries that are not finite"):
        eigen(torch.full((2, 2), float("nan")), "a matrix")
    with pytest.raises(lk.Refused, match=r"negative eigenvalue -1.*method='exact'"):
        eigen(torch.diag(torch.tensor([1.0, -1.0])), "a matrix")
    with pytest.raises(lk.Refused, match="raise the prior precision"):
        cholesky(torch.diag(torch.tensor([1.0, -1.0])), "a matrix")
