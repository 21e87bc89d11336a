"""The ops on receptive-field windows by their CUDA kernels, against plain loops."""

from __future__ import annotations

import pytest
import torch

from lapkernels.ops import window_pull, window_squared_sum
from tests.cuda.conftest import Target
from tests.cuda.precision import stored, summed_in
from tests.ops.compare import assert_same, assert_within
from tests.ops.layouts import BUFFERS, LAYOUTS
from tests.ops.windows import (
    CASES,
    FEW,
    Case,
    brute_pull,
    brute_squared_sum,
    over,
    pair,
    plain,
    pull_tolerance,
    pulled,
    squared_sum_tolerance,
)

SIDES = pytest.mark.parametrize("on_large", [False, True], ids=["small", "large"])
KINDS = pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])
# Past a block of lanes, a tile of channels, and either.
MANY = [plain(3, 2, 2, lanes=300), plain(17, 20, 2, 1, 130), plain(70, 3, 2, 1, 5)]


def pull(case: Case, transposed: bool, target: Target, *tensors: torch.Tensor) -> torch.Tensor:
    s, weight, factor = map(target.to, tensors)
    size = case.small if transposed else case.large
    return window_pull(s, weight, size, *case.places, transposed, factor).cpu()


@over([*CASES, *MANY])
@SIDES
def test_squared_sum_is_exact_on_integers(case: Case, on_large: bool, target: Target) -> None:
    small, large = pair(case, on_large, torch.float32, integers=True)
    wanted = brute_squared_sum(case, small, large)
    found = window_squared_sum(target.to(small), target.to(large), case.kernel, *case.places)
    assert_same(found.cpu(), wanted, empty=not wanted.any())


@over(FEW)
def test_squared_sum_equals_brute_force(case: Case, dtype: torch.dtype, target: Target) -> None:
    small, large = pair(case, False, dtype)
    large = torch.stack([large[0] + v for v in range(case.columns)])
    wanted = brute_squared_sum(case, small, large)
    found = window_squared_sum(target.to(small), target.to(large), case.kernel, *case.places)
    tolerance = squared_sum_tolerance(case, small.double(), large.double(), summed_in(dtype))
    assert_within(found.cpu(), wanted, stored(wanted, tolerance, dtype), empty=not wanted.any())


@over([*CASES, *MANY])
@KINDS
def test_pull_is_exact_on_integers(case: Case, transposed: bool, target: Target) -> None:
    tensors = pulled(case, transposed, torch.float32, integers=True)
    wanted = brute_pull(case, transposed, *tensors)
    assert_same(pull(case, transposed, target, *tensors), wanted, empty=not wanted.any())


@over(FEW)
@KINDS
def test_pull_equals_brute_force(
    case: Case, transposed: bool, dtype: torch.dtype, target: Target
) -> None:
    tensors = pulled(case, transposed, dtype)
    wide = [tensor.to(summed_in(dtype)) for tensor in tensors]
    wanted = brute_pull(case, transposed, *tensors)
    tolerance = pull_tolerance(case, transposed, wide[0], wide[1], wide[2])
    found = pull(case, transposed, target, *tensors)
    assert_within(found, wanted, stored(wanted, tolerance, dtype), empty=not wanted.any())


@over(FEW[:4])
@KINDS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_memory_format(case: Case, transposed: bool, layout: str, target: Target) -> None:
    tensors = pulled(case, transposed, torch.float32, integers=True)
    wanted = brute_pull(case, transposed, *tensors)
    changed = [LAYOUTS[layout](tensor) for tensor in tensors]
    assert_same(pull(case, transposed, target, *changed), wanted, empty=not wanted.any())
    small, large = pair(case, transposed, torch.float32, integers=True)
    wanted = brute_squared_sum(case, small, large)
    small, large = (LAYOUTS[layout](target.to(tensor)) for tensor in (small, large))
    found = window_squared_sum(small, large, case.kernel, *case.places)
    assert_same(found.cpu(), wanted, empty=not wanted.any())


@over(FEW[8:])
@pytest.mark.parametrize("buffer", BUFFERS)
def test_accumulates_anywhere(case: Case, buffer: str, target: Target) -> None:
    small, large = pair(case, False, torch.float32, integers=True)
    value = brute_squared_sum(case, small, large)
    place = BUFFERS[buffer](target.to(value.float()))
    place.view.fill_(4.0)
    tensors = (target.to(small), target.to(large))
    window_squared_sum(*tensors, case.kernel, *case.places, out=place.view, decay=0.5, scale=3.0)
    assert_same(place.view.cpu(), 2.0 + 3.0 * value)
    place.assert_untouched_outside()
