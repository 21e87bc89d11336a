"""The sum of squared Jacobian columns over windows, against plain loops and whole images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lapkernels import use_backend
from lapkernels.ops import Geometry, jacobian_squared_sum, window_squared_sum
from tests.ops.compare import assert_same, assert_within, exact_in
from tests.ops.layouts import BUFFERS, LAYOUTS
from tests.ops.windows import (
    CASES,
    CHANNELS,
    FEW,
    LANES,
    TINY,
    WINDOWS,
    Case,
    brute_squared_sum,
    over,
    pair,
    plain,
    squared_sum_tolerance,
)

SIDES = pytest.mark.parametrize("on_large", [False, True], ids=["small", "large"])


def run(case: Case, small: Tensor, large: Tensor, **keywords: object) -> Tensor:
    return window_squared_sum(small, large, case.kernel, *case.places, **keywords)  # type: ignore[arg-type]


@over(CASES)
@SIDES
@pytest.mark.usefixtures("kernel")
def test_equals_brute_force(case: Case, on_large: bool, dtype: torch.dtype) -> None:
    small, large = pair(case, on_large, dtype)
    wanted = brute_squared_sum(case, small, large)
    found = run(case, small, large)
    assert found.dtype == dtype
    tolerance = squared_sum_tolerance(case, small, large, dtype)
    # Where no tap meets the window, zero is the right answer.
    assert_within(found, wanted, tolerance, empty=not wanted.any())


@over([*CASES, *CHANNELS, *LANES, *WINDOWS])
@SIDES
@pytest.mark.usefixtures("kernel")
def test_is_exact_on_integers(case: Case, on_large: bool, dtype: torch.dtype) -> None:
    small, large = pair(case, on_large, dtype, integers=True)
    assert brute_squared_sum(case, small.abs(), large.abs()).max() <= exact_in(dtype)
    wanted = brute_squared_sum(case, small, large)
    assert_same(run(case, small, large), wanted, empty=not wanted.any())


def test_most_random_cases_have_something_to_sum() -> None:
    found = [bool(brute_squared_sum(case, *pair(case, False)).any()) for case in CASES]
    assert sum(found) > 0.7 * len(found)


@over(FEW)
@pytest.mark.usefixtures("kernel")
def test_columns_on_both_sides(case: Case) -> None:
    small, large = pair(case, False, torch.float32, integers=True)
    large = torch.stack([large[0] + v for v in range(case.columns)])
    wanted = brute_squared_sum(case, small, large)
    assert_same(run(case, small, large), wanted, empty=not wanted.any())


@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.usefixtures("kernel")
def test_lanes_are_samples_of_whole_images(transposed: bool, dims: int) -> None:
    case = Case(
        6, 4, (5,) * dims, (9,) * dims, (3,) * dims, (2,) * dims, (1,) * dims, (1,) * dims, 2, 3, 7
    )
    small, large = pair(case, transposed, torch.float32, integers=True)
    geometry = Geometry.conv(3, 2, 1, groups=2, dims=dims, transposed=transposed)
    s, x = (large, small[0]) if transposed else (small, large[0])
    wanted = jacobian_squared_sum(s.movedim(-1, 1), x.movedim(-1, 0), geometry)
    assert_same(run(case, small, large), wanted)


@over(FEW)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("kernel")
def test_any_memory_format(case: Case, layout: str) -> None:
    small, large = pair(case, False, torch.float32, integers=True)
    wanted = brute_squared_sum(case, small, large)
    empty = not wanted.any()
    assert_same(run(case, LAYOUTS[layout](small), LAYOUTS[layout](large)), wanted, empty=empty)
    assert_same(run(case, small, LAYOUTS[layout](large)), wanted, empty=empty)
    same = large[..., :1].expand_as(large)
    wanted = brute_squared_sum(case, small, same)
    assert_same(run(case, small, same), wanted, empty=not wanted.any())


@over(FEW)
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.usefixtures("kernel")
def test_out_anywhere(case: Case, buffer: str, dtype: torch.dtype) -> None:
    small, large = pair(case, True, dtype, integers=True)
    value = brute_squared_sum(case, small, large)
    target = BUFFERS[buffer](value.to(dtype))
    target.view.fill_(4.0)
    assert run(case, small, large, out=target.view, decay=0.5, scale=3.0) is target.view
    assert_same(target.view, 2.0 + 3.0 * value)
    target.assert_untouched_outside()
    target.view.fill_(float("nan"))
    run(case, small, large, out=target.view, decay=0.0)
    assert_same(target.view, value, empty=not value.any())


MANY = [
    plain(3, 3, 3, 3, 1000),
    plain(16, 16, 2, 1, 301),
    plain(40, 33, 2, 2, 70),
    plain(3, 3, 9, 3, 64),
]


@over([*MANY, *FEW])
@pytest.mark.usefixtures("cpp")
def test_threads_give_the_same_bits(case: Case) -> None:
    before = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(run(case, *pair(case, False, torch.float32)))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@over(MANY)
@SIDES
@pytest.mark.usefixtures("cpp")
def test_many_lanes_equal_the_reference(case: Case, on_large: bool, dtype: torch.dtype) -> None:
    small, large = pair(case, on_large, dtype)
    found = run(case, small, large)
    with use_backend("reference"):
        wanted = run(case, small.double(), large.double())
    count = 2 * case.small[0] ** 2 + case.columns * case.lanes + 6
    with use_backend("reference"):
        magnitude = run(case, small.double().abs(), large.double().abs())
    assert_within(found, wanted, torch.finfo(dtype).eps * count * magnitude)


@over(FEW)
@pytest.mark.usefixtures("kernel")
def test_nothing_to_sum(case: Case) -> None:
    small, large = pair(case, False, torch.float32)
    cuts: list[Callable[[], tuple[Tensor, Tensor]]] = [
        lambda: (small[..., :0], large[..., :0]),
        lambda: (small[:0], large),
        lambda: (small[:, :, :0], large),
        lambda: (small, large[:, :, :0]),
    ]
    for cut in cuts:
        out = torch.full(case.weight, 4.0)
        run(case, *cut(), out=out, decay=0.5)
        assert (out == 2.0).all()
        found = run(case, *cut())
        assert found.shape == case.weight
        assert not found.any()
    assert run(case, small[:, :0], large).shape == (0, *case.weight[1:])


@over(FEW[-3:])
@pytest.mark.usefixtures("kernel")
def test_bad_lane_is_not_hidden(case: Case) -> None:
    small, large = pair(case, False, torch.float32)
    small[..., -1] = float("nan")
    assert run(case, small, large).isnan().all()


CASE = plain(3, 2, 2)
SMALL, LARGE = pair(CASE, False, torch.float32)
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "rank": (lambda: run(CASE, SMALL[0], LARGE), "small"),
    "rank of large": (lambda: run(CASE, SMALL, LARGE[0]), "large"),
    "integers": (lambda: run(CASE, SMALL.long(), LARGE), "small"),
    "dtypes": (lambda: run(CASE, SMALL, LARGE.double()), "large"),
    "devices": (lambda: run(CASE, SMALL, LARGE.to("meta")), "large"),
    "lanes": (lambda: run(CASE, SMALL, LARGE[..., :3]), "large has 3 lanes"),
    "columns": (lambda: run(CASE, SMALL, LARGE.expand(3, -1, -1, -1, -1)), "3 columns"),
    "groups": (
        lambda: window_squared_sum(SMALL, LARGE, [3, 3], [1, 1], [1, 1], [0, 0], 2),
        "groups=2",
    ),
    "kernel": (lambda: window_squared_sum(SMALL, LARGE, [], [], [], [], 1), "kernel_size"),
    "tap": (
        lambda: window_squared_sum(SMALL, LARGE, [3, 0], [1, 1], [1, 1], [0, 0], 1),
        "kernel_size",
    ),
    "stride": (
        lambda: window_squared_sum(SMALL, LARGE, [3, 3], [1, 0], [1, 1], [0, 0], 1),
        "stride",
    ),
    "offset": (lambda: window_squared_sum(SMALL, LARGE, [3, 3], [1, 1], [1, 1], [0], 1), "offset"),
    "out": (lambda: run(CASE, SMALL, LARGE, out=torch.ones(3, 2, 3)), "out"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.usefixtures("kernel")
def test_wrong_argument_is_named(what: str) -> None:
    call, message = WRONG[what]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@over([TINY, plain(2, 2, 2, 2, 3)])
@pytest.mark.usefixtures("kernel")
def test_gradient(case: Case) -> None:
    inputs = [window.requires_grad_() for window in pair(case, False)]
    assert torch.autograd.gradcheck(lambda *windows: run(case, *windows), inputs)
