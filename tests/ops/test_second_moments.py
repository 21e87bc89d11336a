"""Second moments by torch's products: the same values as the kernels', where both serve."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapkernels import ops, use_backend
from lapkernels.ops import Geometry
from lapkernels.ops.kronecker_input import moments_by_library
from lapkernels.ops.serving import MOMENT_CHANNELS as FEW
from lapkernels.ops.serving import MOMENT_FEATURES as FEATURES
from lapkernels.ops.serving import MOMENT_POSITIONS as MANY
from lapkernels.ops.serving import MOMENT_ROWS as ROWS
from tests.ops.compare import assert_same


def _integers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).float()


# [N, I, T] as rows of features, whose kernel pays only where both are many.
ROW_MAJOR = [
    *((1, 1, 1), (5, 3, 1), (ROWS, FEATURES + 1, 1), (ROWS + 1, FEATURES, 1)),
    *((4, 7, 6), (2, FEATURES + 8, ROWS // 2), (40, 6, 9)),
]


@pytest.mark.parametrize("shape", ROW_MAJOR, ids=str)
def test_rows(shape: tuple[int, int, int]) -> None:
    n, i, t = shape
    x = _integers(n, t, i).mT
    found = moments_by_library(x)
    assert found is not None
    assert_same(found(), torch.einsum("nit,njt->ij", x, x).unsqueeze(0))


@pytest.mark.parametrize("channels", [1, 3, FEW])
def test_few_channels(channels: int) -> None:
    x = _integers(3, channels, MANY)
    found = moments_by_library(x)
    assert found is not None
    assert_same(found(), torch.einsum("nit,njt->ij", x, x).unsqueeze(0))


def test_what_is_left_to_the_kernels() -> None:
    assert moments_by_library(_integers(ROWS + 1, FEATURES + 1, 1)) is None
    assert moments_by_library(_integers(2, FEW + 1, MANY)) is None
    assert moments_by_library(_integers(2, FEW, MANY - 1)) is None


@pytest.mark.parametrize("reduce", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("positions", [(), (5,), (3, MANY)])
def test_ops_by_library_and_by_reference(
    reduce: bool, groups: int, positions: tuple[int, ...]
) -> None:
    linear = len(positions) < 2
    if linear and groups > 1:
        pytest.skip("a linear layer has one group")
    geometry = Geometry() if linear else Geometry.conv((1, 1), groups=groups)
    shape = (4, *positions, 6) if linear else (4, 6, *positions)
    x, s = _integers(*shape), _integers(2, *shape)

    def both() -> list[Tensor]:
        total = torch.ones(groups, 6 // groups, 6 // groups)
        return [
            ops.kronecker_input(x, geometry, reduce=reduce),
            ops.kronecker_output(s, geometry, reduce=reduce),
            ops.kronecker_output(s, geometry, reduce=reduce, out=total, scale=2.0),
        ]

    found = both()
    with use_backend("reference"):
        wanted = both()
    for one, other in zip(found, wanted, strict=True):
        assert other.any()
        assert_same(one, other)
