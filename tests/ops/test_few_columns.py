"""Sums of squares by torch's products: exact on integers, and left to the kernels elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapkernels import use_backend
from lapkernels.ops import Geometry, jacobian_squared_sum
from lapkernels.ops.base.matrix_products import CHUNK, squared_sum_of_few, takes_few
from lapkernels.ops.serving import FEW_COLUMNS as COLUMNS
from lapkernels.ops.serving import JACOBIAN as MOST
from tests.ops.compare import assert_same


def _integers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).float()


# V, N, T, I, O: the last has several chunks of samples.
SIZES = [(1, 1, 2, 1, 1), (1, 5, 3, 4, 7), (COLUMNS, 6, 9, 5, 2), (2, 9, 2, CHUNK // 32, 16)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_reference(size: tuple[int, ...]) -> None:
    v, n, t, i, o = size
    s, x = _integers(v, n, t, o), _integers(n, t, i)
    assert takes_few(s.mT, x.mT.unsqueeze(0))
    found = squared_sum_of_few(s.mT, x.mT.unsqueeze(0))
    assert found.any()
    with use_backend("reference"):
        wanted = jacobian_squared_sum(s, x, Geometry())
    assert_same(found, wanted)
    assert_same(jacobian_squared_sum(s, x, Geometry()), wanted)
    total = torch.ones_like(wanted)
    assert_same(jacobian_squared_sum(s, x, Geometry(), out=total, scale=2.0), 1 + 2 * wanted)


def test_what_is_left_to_the_kernels() -> None:
    s, x = _integers(1, 3, 4, 5).mT, _integers(1, 3, 4, 6).mT
    assert takes_few(s, x)
    assert not takes_few(s.expand(COLUMNS + 1, -1, -1, -1), x)
    assert not takes_few(s, x.expand(2, -1, -1, -1))
    assert not takes_few(s.contiguous(), x)
    assert not takes_few(s, x.contiguous())
    wide = torch.ones(1, 1, 2, MOST // 5 + 1).mT
    assert not takes_few(s[:, :1, :, :2], wide)


def test_one_nan_stays_in_its_place() -> None:
    s, x = _integers(1, 3, 4, 5), _integers(3, 4, 6)
    s[0, 1, 2, 3] = torch.nan
    found = jacobian_squared_sum(s, x, Geometry()).isnan()
    assert found[3].all() and not found[[0, 1, 2, 4]].any()
