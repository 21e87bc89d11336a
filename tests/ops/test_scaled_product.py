"""Shared columns times a factor and a weight, against plain loops over columns and samples."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from lapkernels import use_backend
from lapkernels.ops import scaled_product
from lapkernels.ops.scaled_product import banded_product
from lapkernels.ops.serving import BLOCK
from tests.ops.compare import assert_same_bits, assert_within

# V, N, F, J: one of each, none, odd, and beyond blocks, panels and depth.
SIZES = [(1, 1, 1, 1), (3, 2, 5, 7), (70, 3, 300, 50), (17, 1, 33, 25), (130, 2, 517, 9)]
EMPTY = [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)]
KINDS = ["dense", "unit", "triangular", "lower", "zero", "blocks"]


def rows_of(kind: str, count: int, features: int, dtype: torch.dtype) -> Tensor:
    rows = torch.randn(count, features, dtype=dtype)
    if kind == "unit":
        return torch.eye(count, features, dtype=dtype)
    if kind == "zero":
        return torch.zeros_like(rows)
    if kind == "blocks":
        rows[: count // 2] = 0
        rows[count // 2 :, 3:] = 0
    return rows.triu() if kind == "triangular" else rows.tril() if kind == "lower" else rows


def brute(rows: Tensor, factor: Tensor, weight: Tensor) -> Tensor:
    found = rows.new_zeros(len(rows), len(factor), weight.shape[1], dtype=torch.float64)
    for v, row in enumerate(rows.double()):
        for n, scale in enumerate(factor.double()):
            found[v, n] = (row * scale) @ weight.double()
    return found


def draw(size: tuple[int, int, int, int], kind: str, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(sum(size))
    count, samples, features, columns = size
    rows = rows_of(kind, count, features, dtype)
    return [
        *(rows, torch.randn(samples, features, dtype=dtype)),
        torch.randn(features, columns, dtype=dtype),
    ]


@pytest.mark.parametrize("size", [*SIZES, *EMPTY])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("kernel")
def test_equals_brute_force(size: tuple[int, int, int, int], kind: str, dtype: torch.dtype) -> None:
    given = draw(size, kind, dtype)
    terms = torch.finfo(dtype).eps * (size[2] + 4)
    wanted, magnitude = brute(*given), brute(*map(torch.abs, given))
    empty = kind == "zero" or size in EMPTY
    assert_within(scaled_product(*given), wanted, terms * magnitude, empty=empty)


@pytest.mark.usefixtures("kernel")
def test_integers_are_exact_in_any_layout(dtype: torch.dtype) -> None:
    whole = partial(torch.randint, -3, 4)
    rows, factor, weight = (whole(s).to(dtype) for s in ((40, 30), (5, 30), (30, 26)))
    known = brute(rows, factor, weight).to(dtype)
    turned = [x.T.contiguous().T for x in (rows, factor, weight)]
    apart = [torch.stack([x, x], 2)[..., 0] for x in (rows, factor, weight)]
    for given in ((rows, factor, weight), turned, apart):
        assert torch.equal(scaled_product(*given), known)
    same = factor[:1].expand(5, -1)
    assert torch.equal(scaled_product(rows, same, weight), known[:, :1].expand(-1, 5, -1))
    ones = torch.ones(26, 5, 40, dtype=dtype)
    for out in (ones.permute(2, 1, 0), ones.permute(2, 1, 0).contiguous()):
        scaled_product(rows, factor, weight, out=out, decay=2.0, scale=0.5)
        assert torch.equal(out, 2 + 0.5 * known)


@pytest.mark.usefixtures("cpp")
def test_same_bits_for_any_number_of_threads() -> None:
    given = draw((130, 7, 517, 50), "triangular", torch.float32)
    assert_same_bits(lambda: scaled_product(*given))


@pytest.mark.usefixtures("kernel")
def test_a_sample_that_is_not_finite_stays_alone() -> None:
    rows, factor, weight = draw((20, 3, 15, 30), "dense", torch.float32)
    factor[1, 4] = torch.nan
    found = scaled_product(rows, factor, weight)
    assert bool(found[:, 1].isnan().all())
    assert bool(found[:, [0, 2]].isfinite().all())


@pytest.mark.usefixtures("kernel")
def test_gradients() -> None:
    given = [x.requires_grad_() for x in draw((3, 2, 4, 5), "dense", torch.float64)]
    assert gradcheck(scaled_product, given)


def test_what_does_not_fit_is_named() -> None:
    rows, factor, weight = draw((3, 2, 4, 5), "dense", torch.float32)
    for wrong, name in (
        ((rows[0], factor, weight), "rows"),
        ((rows, factor[:, :3], weight), "factor"),
        ((rows, factor, weight[:3]), "weight"),
        ((rows, factor.double(), weight), "factor"),
    ):
        with pytest.raises((ValueError, TypeError), match=name):
            scaled_product(*wrong)
    with use_backend("reference"), pytest.raises(ValueError, match="out"):
        scaled_product(rows, factor, weight, out=torch.zeros(3, 2, 4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, BLOCK, 3 * BLOCK + 5])
def test_products_of_rows_with_zeros(kind: str, size: int) -> None:
    rows = rows_of(kind, size, size, torch.float64)
    matrix = torch.randn(size, 7, dtype=torch.float64)
    torch.testing.assert_close(banded_product(rows, matrix), rows @ matrix)
