"""Max, average, adaptive and fractional pools, and unpooling."""

from __future__ import annotations

import pytest
import torch

from lapkernels.rules import MixesSamples
from tests.rules import check
from tests.rules.calls import Arg, Case, aten, case, given, k, x

MAX2, MAX3 = aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default
ADAPTIVE3 = aten._adaptive_avg_pool3d.default
AVG2, AVG3 = aten.avg_pool2d.default, aten.avg_pool3d.default


def _random(rows: int, channels: int, dims: int) -> Arg:
    return k(torch.rand(rows, channels, dims, dtype=torch.float64))


def _indices(*shape: int, size: int) -> Arg:
    order = torch.rand(*shape[:2], size).argsort(2)
    return given(order[..., : torch.Size(shape[2:]).numel()].reshape(shape))


CASES: list[Case] = [
    *case("max2", MAX2, lambda: (x(3, 2, 4, 5), [2, 2], [2, 2])),
    *case("max2-overlap", MAX2, lambda: (x(3, 2, 5, 5), [3, 3], [1, 1], [1, 1])),
    *case("max2-dilated", MAX2, lambda: (x(3, 1, 6, 6), [2, 2], [2, 1], [0, 0], [2, 2], True)),
    *case("max2-merged", MAX2, lambda: (x(12, 2, 4, 4, outer=2, inner=2), [2, 2])),
    *case("max2-no-batch", MAX2, lambda: (x(6, 4, 4, inner=2), [2, 2])),
    *case("max2-channels", MAX2, lambda: (x(1, 6, 4, 4, dim=1, inner=2), [3, 3], [1, 1])),
    *case("max3", MAX3, lambda: (x(3, 2, 3, 4, 2), [2, 2, 2], [1, 2, 1])),
    *case("avg2", AVG2, lambda: (x(3, 2, 4, 5), [2, 2], [2, 2])),
    *case("avg2-pad", AVG2, lambda: (x(3, 2, 5, 5), [3, 2], [2, 2], [1, 1], True)),
    *case("avg2-no-pad", AVG2, lambda: (x(3, 2, 5, 5), [3, 3], [1, 2], [1, 1], False, False)),
    *case("avg2-divisor", AVG2, lambda: (x(3, 2, 5, 4), [2, 3], [1, 1], [1, 1], False, True, 5)),
    *case("avg2-merged", AVG2, lambda: (x(12, 2, 4, 4, outer=2, inner=2), [2, 2])),
    *case("avg2-no-batch", AVG2, lambda: (x(6, 4, 4, inner=2), [2, 2])),
    *case("avg3", AVG3, lambda: (x(3, 2, 3, 4, 3), [2, 2, 2], [1, 2, 1], [1, 0, 1], True, False)),
    *case("adaptive-avg2", aten._adaptive_avg_pool2d.default, lambda: (x(3, 2, 5, 4), [3, 3])),
    *case("adaptive-avg2-up", aten._adaptive_avg_pool2d.default, lambda: (x(3, 2, 2, 3), [3, 5])),
    *case("adaptive-avg2-merged", aten._adaptive_avg_pool2d.default,
        lambda: (x(6, 2, 5, 4, outer=2), [2, 1])),
    *case("adaptive-avg3", ADAPTIVE3, lambda: (x(3, 2, 5, 4, 3), [3, 2, 2])),
    *case("adaptive-max2", aten.adaptive_max_pool2d.default, lambda: (x(3, 2, 5, 4), [3, 3])),
    *case("adaptive-max3", aten.adaptive_max_pool3d.default, lambda: (x(3, 2, 5, 4, 2), [3, 2, 2])),
    *case("fractional2", aten.fractional_max_pool2d.default,
        lambda: (x(3, 2, 5, 5), [2, 2], [3, 3], _random(3, 2, 2))),
    *case("fractional3", aten.fractional_max_pool3d.default,
        lambda: (x(3, 1, 4, 4, 5), [2, 2, 2], [2, 2, 3], _random(3, 1, 3))),
    *case("unpool2", aten.max_unpool2d.default,
        lambda: (x(3, 2, 2, 2), _indices(3, 2, 2, 2, size=16), [4, 4])),
    *case("unpool3", aten.max_unpool3d.default,
        lambda: (*(x(3, 2, 2, 1, 2), _indices(3, 2, 2, 1, 2, size=32)),
            *([4, 2, 4], [2, 2, 2], [0, 0, 0]))),
]  # fmt: skip


test_rule = check.each_rule(CASES)


@pytest.mark.parametrize("op", [MAX2, AVG2])
def test_a_pool_over_samples_is_refused(op: object) -> None:
    (one, _) = case("over", op, lambda: (x(2, 2, 4, 4, dim=3), [2, 2]))
    check.refused(one, MixesSamples, "samples")
