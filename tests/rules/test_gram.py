"""Sums of squares through the Gram matrices of positions."""

from __future__ import annotations

import pytest
import torch

from lapkernels import ops
from lapkernels.ops import Geometry
from lapkernels.rules.choices import forced
from lapkernels.rules.gram import gram_squared_sum, takes_gram

CASES = {
    "linear": (Geometry(), (5, 2, 3, 4), (2, 3, 6)),
    "conv1d": (Geometry.conv((3,), stride=(2,)), (5, 2, 4, 3), (2, 3, 7)),
    "conv2d": (Geometry.conv((3, 2), padding=1, dilation=(2, 1)), (4, 3, 4, 3, 6), (3, 2, 5, 5)),
    "groups": (Geometry.conv((2, 2), groups=2), (4, 2, 6, 2, 3), (2, 4, 3, 4)),
}


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_sum_of_squared_jacobians(
    case: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapkernels.ops.chunks.CHUNK", chunk)
    torch.manual_seed(0)
    geometry, columns, inputs = CASES[case]
    s = torch.randn(columns, dtype=torch.float64)
    x = torch.randn(inputs, dtype=torch.float64)
    expected = ops.jacobian(s, x, geometry).square().sum((0, 1))
    found = gram_squared_sum(s, x, geometry)
    torch.testing.assert_close(found.reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)


def test_few_positions_and_many_columns_take_it() -> None:
    assert takes_gram(columns=1000, positions=4, out=64, features=256)
    assert not takes_gram(columns=4, positions=64, out=64, features=256)
    with forced(gram=False):
        assert not takes_gram(columns=1000, positions=4, out=64, features=256)
