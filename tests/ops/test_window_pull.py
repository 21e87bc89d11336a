"""Columns pulled back as windows, against plain loops and whole images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lapkernels.ops import Geometry, conv_input, window_pull
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
    brute_pull,
    over,
    plain,
    pull_tolerance,
    pulled,
)

KINDS = pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])


def run(case: Case, transposed: bool, s: Tensor, weight: Tensor, factor: Tensor | None) -> Tensor:
    size = case.small if transposed else case.large
    return window_pull(s, weight, size, *case.places, transposed, factor)


@over(CASES)
@KINDS
@pytest.mark.usefixtures("kernel")
def test_equals_brute_force(case: Case, transposed: bool, dtype: torch.dtype) -> None:
    s, weight, factor = pulled(case, transposed, dtype)
    for scale in (None, factor):
        wanted = brute_pull(case, transposed, s, weight, scale)
        found = run(case, transposed, s, weight, scale)
        assert found.dtype == dtype
        tolerance = pull_tolerance(case, transposed, s, weight, scale)
        # Where no tap meets the window, zero is the right answer.
        assert_within(found, wanted, tolerance, empty=not wanted.any())


@over([*CASES, *CHANNELS, *LANES, *WINDOWS])
@KINDS
@pytest.mark.usefixtures("kernel")
def test_is_exact_on_integers(case: Case, transposed: bool, dtype: torch.dtype) -> None:
    s, weight, factor = pulled(case, transposed, dtype, integers=True)
    largest = brute_pull(case, transposed, s.abs(), weight.abs(), factor.abs()).max()
    assert largest <= exact_in(dtype), "partial sums might round"
    for scale in (None, factor):
        wanted = brute_pull(case, transposed, s, weight, scale)
        assert_same(run(case, transposed, s, weight, scale), wanted, empty=not wanted.any())


def test_most_random_cases_reach_something() -> None:
    found = [bool(brute_pull(case, False, *pulled(case, False)).any()) for case in CASES]
    assert sum(found) > 0.7 * len(found)


@KINDS
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.usefixtures("kernel")
def test_lanes_are_samples_of_whole_images(transposed: bool, dims: int, padding: int) -> None:
    large = 11 - 2 * padding
    case = Case(
        6, 4, (5,) * dims, (large,) * dims, (3,) * dims, (2,) * dims, (1,) * dims,
        (padding,) * dims, 2, 3, 7,
    )  # fmt: skip
    s, weight, _ = pulled(case, transposed, torch.float32, integers=True)
    geometry = Geometry.conv(3, 2, padding, groups=2, dims=dims, transposed=transposed)
    size = case.small if transposed else case.large
    images = s.movedim(-1, 1)
    wanted = conv_input(images.flatten(0, 1), weight, size, geometry)
    wanted = wanted.unflatten(0, images.shape[:2]).movedim(1, -1)
    assert_same(run(case, transposed, s, weight, None), wanted)


@over(FEW)
@KINDS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("kernel")
def test_any_memory_format(case: Case, transposed: bool, layout: str) -> None:
    change = LAYOUTS[layout]
    s, weight, factor = pulled(case, transposed, torch.float32, integers=True)
    wanted = brute_pull(case, transposed, s, weight, factor)
    empty = not wanted.any()
    assert_same(run(case, transposed, change(s), weight, factor), wanted, empty=empty)
    assert_same(run(case, transposed, s, change(weight), change(factor)), wanted, empty=empty)
    same = s[..., :1].expand_as(s)
    wanted = brute_pull(case, transposed, same, weight, factor)
    assert_same(run(case, transposed, same, weight, factor), wanted, empty=not wanted.any())


@over(FEW)
@KINDS
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.usefixtures("kernel")
def test_accumulates_anywhere(
    case: Case, transposed: bool, buffer: str, dtype: torch.dtype
) -> None:
    s, weight, factor = pulled(case, transposed, dtype, integers=True)
    size = list(case.small if transposed else case.large)
    value = brute_pull(case, transposed, s, weight, factor)
    target = BUFFERS[buffer](value.to(dtype))
    target.view.fill_(4.0)
    arguments = (s, weight, size, *case.places, transposed, factor)
    torch.ops.lapkernels.window_pull_(target.view, 0.5, 3.0, *arguments)
    assert_same(target.view, 2.0 + 3.0 * value)
    target.assert_untouched_outside()
    target.view.fill_(float("nan"))
    torch.ops.lapkernels.window_pull_(target.view, 0.0, 1.0, *arguments)
    assert_same(target.view, value, empty=not value.any())


MANY = [plain(3, 3, 3, 3, 1000), plain(16, 16, 2, 1, 301), plain(40, 33, 2, 2, 70)]


@over([*MANY, *FEW])
@KINDS
@pytest.mark.usefixtures("cpp")
def test_threads_give_the_same_bits(case: Case, transposed: bool) -> None:
    before = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(run(case, transposed, *pulled(case, transposed, torch.float32)))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@over(MANY)
@KINDS
@pytest.mark.usefixtures("cpp")
def test_lanes_and_columns_may_be_split(case: Case, transposed: bool) -> None:
    s, weight, factor = pulled(case, transposed, torch.float32, integers=True)
    whole = run(case, transposed, s, weight, factor)
    cut = case.lanes // 3
    parts = [
        run(case, transposed, s[..., lanes], weight, factor[..., lanes])
        for lanes in (slice(0, cut), slice(cut, None))
    ]
    assert_same(torch.cat(parts, -1), whole)
    columns = [run(case, transposed, s[v : v + 1], weight, factor) for v in range(case.columns)]
    assert_same(torch.cat(columns), whole)


@over(FEW[-3:])
@KINDS
@pytest.mark.usefixtures("kernel")
def test_bad_lane_stays_in_its_place(case: Case, transposed: bool) -> None:
    s, weight, factor = pulled(case, transposed, torch.float32)
    clean = run(case, transposed, s, weight, factor)
    s[..., 1] = float("nan")
    found = run(case, transposed, s, weight, factor)
    assert found[..., 1].isnan().all()
    others = [lane for lane in range(case.lanes) if lane != 1]
    assert torch.equal(found[..., others], clean[..., others])


@over(FEW)
@KINDS
@pytest.mark.usefixtures("kernel")
def test_nothing_to_pull(case: Case, transposed: bool) -> None:
    s, weight, factor = pulled(case, transposed, torch.float32)
    whole = run(case, transposed, s, weight, factor)
    assert run(case, transposed, s[..., :0], weight, factor[..., :0]).shape[-1] == 0
    assert run(case, transposed, s[:0], weight, factor).shape == (0, *whole.shape[1:])
    found = run(case, transposed, s[:, :, :0], weight, factor)
    assert found.shape == whole.shape
    assert not found.any()
    size = [0] * len(case.kernel)
    assert window_pull(s, weight, size, *case.places, transposed).numel() == 0


CASE = plain(3, 2, 2)
S, WEIGHT, FACTOR = pulled(CASE, False, torch.float32)
TWO = ([1, 1], [1, 1], [0, 0])
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "rank": (lambda: run(CASE, False, S[0], WEIGHT, None), r"\bs\b"),
    "rank of weight": (lambda: run(CASE, False, S, WEIGHT[0, 0], None), "weight"),
    "integers": (lambda: run(CASE, False, S.long(), WEIGHT, None), r"\bs\b"),
    "dtypes": (lambda: run(CASE, False, S, WEIGHT.double(), None), "weight"),
    "dtype of factor": (lambda: run(CASE, False, S, WEIGHT, FACTOR.double()), "factor"),
    "devices": (lambda: run(CASE, False, S, WEIGHT.to("meta"), None), "weight"),
    "channels": (lambda: run(CASE, False, S[:, :2], WEIGHT, None), "s has 2 channels"),
    "factor": (lambda: run(CASE, False, S, WEIGHT, FACTOR[..., 1:]), "factor"),
    "size": (lambda: window_pull(S, WEIGHT, [4], *TWO), "size"),
    "negative size": (lambda: window_pull(S, WEIGHT, [4, -1], *TWO), "size"),
    "groups": (lambda: window_pull(S, WEIGHT, [4, 4], *TWO, 2), "groups=2"),
    "stride": (lambda: window_pull(S, WEIGHT, [4, 4], [0, 1], *TWO[1:]), "stride"),
    "dilation": (lambda: window_pull(S, WEIGHT, [4, 4], [1, 1], [1], [0, 0]), "dilation"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.usefixtures("kernel")
def test_wrong_argument_is_named(what: str) -> None:
    call, message = WRONG[what]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@over([TINY, plain(2, 2, 2, 2, 3)])
@KINDS
@pytest.mark.usefixtures("kernel")
def test_gradient(case: Case, transposed: bool) -> None:
    inputs = [entry.requires_grad_() for entry in pulled(case, transposed)]
    assert torch.autograd.gradcheck(lambda *entries: run(case, transposed, *entries), inputs)
