"""The largest eigenvalues against those of the dense matrix."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import nn

import lapkernels as lk
from lapkernels.curvature.quantities.low_rank import largest_eigenvalues
from tests.curvature import oracle
from tests.curvature.check import close, made
from tests.curvature.zoo import ZOO


@pytest.mark.parametrize("id", ["conv2d-groups", "weight-norm", "first-of-tuple"])
def test_low_rank(id: str) -> None:
    network = ZOO[id]
    model, x, y = made(network)
    matrix = oracle.ggn(model, x, y, output=network.output)
    draws = torch.Generator().manual_seed(0)
    found = lk.low_rank(model, (x, y), 4, output=network.output, generator=draws, tolerance=1e-9)
    values = torch.linalg.eigvalsh(matrix).flip(0)
    close(found.values, values[:4])
    close(found.vectors.T @ found.vectors, torch.eye(4, dtype=torch.float64))
    residual = (matrix @ found.vectors - found.vectors * found.values).norm(dim=0)
    assert bool((residual <= 2e-9 * values[0]).all())
    assert found.slices == oracle.slices(model) and found.count == network.samples


def test_all_eigenvalues() -> None:
    model, x, y = made(ZOO["linear-2d"])
    matrix = oracle.ggn(model, x, y)
    found = lk.low_rank(model, [(x, y)], len(matrix))
    close(found.dense(), matrix)
    assert bool((found.values >= 0).all())


@pytest.mark.parametrize("method", ["mc", "empirical"])
def test_of_scores(method: Literal["mc", "empirical"]) -> None:
    """The same scores in every sweep: eigenvalues of one matrix, which the products show."""
    model, x, y = made(ZOO["conv2d-stride"], "categorical")
    size = sum(p.numel() for p in model.parameters())
    options: dict[str, Any] = {"likelihood": "categorical", "method": method, "samples": 2}
    matrix = lk.ggn_product(
        model,
        (x, y),
        torch.eye(size, dtype=torch.float64),
        **options,
        generator=torch.Generator().manual_seed(3),
    )
    assert isinstance(matrix, torch.Tensor)
    draws = torch.Generator().manual_seed(3)
    found = lk.low_rank(model, (x, y), 3, **options, generator=draws, tolerance=1e-9)
    close(found.values, torch.linalg.eigvalsh(matrix).flip(0)[:3])
    assert found.summary.method == method


def test_explains(capsys: pytest.CaptureFixture[str]) -> None:
    model, x, y = made(ZOO["conv2d-stride"])
    found = lk.low_rank(model, (x, y), 3, explain=True, memory_budget=1)
    text = capsys.readouterr().out
    assert f"{found.vectors.shape[0]} parameters, {found.count} samples" in text
    assert "blocks of 11 vectors, of which 1 go through the model at once" in text


def test_seeded() -> None:
    model, x, y = made(ZOO["conv2d-stride"])
    first, second = (
        lk.low_rank(model, (x, y), 3, generator=torch.Generator().manual_seed(5)) for _ in range(2)
    )
    assert first.vectors.equal(second.vectors)


def test_restarts_find_close_eigenvalues() -> None:
    """A spectrum without gaps, for which the space has to be cut down many times."""
    size, rank = 300, 5
    q = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q
    values = torch.linspace(1.0, 0.0, size, dtype=torch.float64).square()
    matrix = (q * values) @ q.T
    start = torch.linalg.qr(torch.randn(size, rank + 3, dtype=torch.float64)).Q
    found, vectors, residuals = largest_eigenvalues(lambda v: matrix @ v, start, rank, 1e-9, 500)
    close(found, values[:rank], 1e-9)
    close(vectors.T @ vectors, torch.eye(rank, dtype=torch.float64))
    assert float(residuals.max()) < 1e-9
    with pytest.raises(lk.Refused, match="max_sweeps=2 .* more than tolerance=1.0e-09"):
        largest_eigenvalues(lambda v: matrix @ v, start, rank, 1e-9, 2)


@pytest.mark.parametrize("function", [lk.ggn_product, lk.low_rank, lk.hessian_diag])
def test_nothing_is_kept(function: Callable[..., Any]) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(4, 3)
    seen: list[weakref.ref[Any]] = []
    model[1].register_forward_hook(lambda module, given, out: seen.append(weakref.ref(out)))
    vector = {"vector": torch.ones(20)} if function is lk.ggn_product else {}
    rank = {"rank": 2} if function is lk.low_rank else {}
    function(model, (x, torch.zeros(4, 2)), **vector, **rank)
    gc.collect()
    assert seen and all(reference() is None for reference in seen)


def test_float32() -> None:
    model, x = ZOO["conv2d-stride"].make(torch.float32)
    wanted = torch.linalg.eigvalsh(oracle.ggn(model, x, torch.zeros(3, 2))).flip(0)[:3]
    close(lk.low_rank(model, x, 3).values.double(), wanted, 1e-4)


def test_refusals() -> None:
    model, x, y = made(ZOO["linear"])
    with pytest.raises(ValueError, match="rank=17: 1 to 16"):
        lk.low_rank(model, x, 17)
    with pytest.raises(ValueError, match="iterator"):
        lk.low_rank(model, iter([x]), 2)
    with pytest.raises(ValueError, match=r"\[P\] or \[P, K\] with P = 16"):
        lk.ggn_product(model, x, torch.ones(3).double())
    with pytest.raises(ValueError, match="vector has entries"):
        lk.ggn_product(model, x, {"weight": torch.ones(4, 3).double()})
