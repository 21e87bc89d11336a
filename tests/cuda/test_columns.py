"""The ops on windows and on columns that share zeros by their CUDA kernels, against plain loops."""

from __future__ import annotations

import pytest
import torch

from tests.cuda.conftest import Target
from tests.cuda.precision import stored, summed_in
from tests.ops import sparse, windows
from tests.ops.compare import assert_same, assert_within
from tests.ops.layouts import BUFFERS, LAYOUTS
from tests.ops.test_columns import Call, Tensors, calls, over, window_sum
from tests.ops.windows import plain

# Past a block of lanes, a tile of channels, and either.
MANY = [plain(3, 2, 2, lanes=300), plain(17, 20, 2, 1, 130), plain(70, 3, 2, 1, 5)]
ZEROS = [*sparse.FEW, *sparse.RANDOM[:4]]


def run(call: Call, target: Target, given: Tensors) -> torch.Tensor:
    return call.run(*map(target.to, given)).cpu()


@over(calls([*windows.CASES, *MANY], ZEROS))
def test_is_exact_on_integers(call: Call, target: Target) -> None:
    given = call.draw(torch.float32, True)
    wanted = call.brute(*given)
    assert_same(run(call, target, given), wanted, empty=not wanted.any())


@over(calls(windows.FEW))
def test_equals_brute_force(call: Call, dtype: torch.dtype, target: Target) -> None:
    given = call.draw(dtype)
    wanted = call.brute(*given)
    tolerance = torch.finfo(summed_in(dtype)).eps * (call.summands + 6) * call.magnitude(given)
    found = run(call, target, given)
    assert_within(found, wanted, stored(wanted, tolerance, dtype), empty=not wanted.any())


@pytest.mark.parametrize("case", windows.FEW, ids=str)
def test_columns_on_both_sides(case: windows.Case, target: Target) -> None:
    call = window_sum(case, False)
    small, large = call.draw(torch.float32, True)
    large = torch.stack([large[0] + v for v in range(case.columns)])
    wanted = call.brute(small, large)
    assert_same(run(call, target, (small, large)), wanted, empty=not wanted.any())


@over(calls(windows.FEW[:4]))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_memory_format(call: Call, layout: str, target: Target) -> None:
    given = call.draw(torch.float32, True)
    wanted = call.brute(*given)
    changed = [LAYOUTS[layout](target.to(tensor)) for tensor in given]
    assert_same(call.run(*changed).cpu(), wanted, empty=not wanted.any())


@over(calls(windows.FEW[8:]))
@pytest.mark.parametrize("buffer", BUFFERS)
def test_accumulates_anywhere(call: Call, buffer: str, target: Target) -> None:
    given = call.draw(torch.float32, True)
    value = call.brute(*given)
    place = BUFFERS[buffer](target.to(value.float()))
    place.view.fill_(4.0)
    call.into(place.view, 0.5, 3.0, *map(target.to, given))
    assert_same(place.view.cpu(), 2.0 + 3.0 * value)
    place.assert_untouched_outside()
