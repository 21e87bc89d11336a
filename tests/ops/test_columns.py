"""Ops on columns that are windows, or that share zeros, against plain loops and dense ops.

Every test runs on a table of calls: sums of squared columns and columns pulled back, of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from lapkernels import use_backend
from lapkernels.kernels import NATIVE
from lapkernels.ops import (
    Geometry,
    conv_input,
    jacobian_squared_sum,
    sparse_conv_input,
    sparse_squared_sum,
    window_pull,
    window_squared_sum,
)
from lapkernels.ops.serving import LOOKED_FOR
from lapkernels.ops.sparse_squared_sum import mostly_zero
from tests.ops import sparse, windows
from tests.ops.compare import assert_same, assert_same_bits, assert_within, exact_in
from tests.ops.layouts import BUFFERS, LAYOUTS
from tests.ops.sparse import conv
from tests.ops.windows import plain

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Call:
    """An op on a case.

    `draw(dtype, integers)` has its tensors, `brute` the answer in float64, and `summands` bounds
    the longest chain of additions. `into(out, decay, scale, *tensors)` accumulates. Along dimension
    `shared[1]` of tensor `shared[0]` all entries may be one.
    """

    id: str
    draw: Callable[..., Tensors]
    run: Callable[..., Tensor]
    brute: Callable[..., Tensor]
    into: Callable[..., object]
    summands: int
    shared: tuple[int, int]

    def magnitude(self, tensors: Tensors) -> Tensor:
        """What every entry would be if no two of its terms cancelled."""
        return self.brute(*(tensor.double().abs() for tensor in tensors))


def window_sum(case: windows.Case, on_large: bool) -> Call:
    places = (list(case.kernel), *case.places)

    def into(out: Tensor, decay: float, scale: float, small: Tensor, large: Tensor) -> None:
        given = {"out": out, "decay": decay, "scale": scale}
        assert window_squared_sum(small, large, *places, **given) is out

    return Call(
        f"window_squared_sum-{'large' if on_large else 'small'}-{case}",
        lambda dtype, integers=False: windows.pair(case, on_large, dtype, integers),
        lambda small, large: window_squared_sum(small, large, *places),
        partial(windows.brute_squared_sum, case),
        into,
        2 * prod(case.small) + case.columns * case.lanes,
        (1, -1),
    )


def window_pulled(case: windows.Case, transposed: bool, scaled: bool = True) -> Call:
    size = list(case.small if transposed else case.large)

    def run(s: Tensor, weight: Tensor, factor: Tensor | None = None) -> Tensor:
        return window_pull(s, weight, size, *case.places, transposed, factor)

    def into(
        out: Tensor, decay: float, scale: float, s: Tensor, weight: Tensor, *z: Tensor
    ) -> None:
        rest = (size, *case.places, transposed, z[0] if z else None)
        torch.ops.lapkernels.window_pull_(out, decay, scale, s, weight, *rest)

    return Call(
        f"window_pull-{'transposed' if transposed else 'conv'}-{scaled}-{case}",
        lambda dtype, integers=False: windows.pulled(case, transposed, dtype, integers)[
            : 2 + scaled
        ],
        run,
        lambda *given: windows.brute_pull(case, transposed, *given, *([] if scaled else [None])),
        into,
        prod(case.weight),
        (0, -1),
    )


def _dense(case: sparse.Case, s: Tensor, weight: Tensor) -> Tensor:
    with use_backend("reference"):
        value = conv_input(s.double().flatten(0, 1), weight.double(), case.size, case.geometry)
    return value.unflatten(0, s.shape[:2])


def sparse_sum(case: sparse.Case, shared: bool) -> Call:
    def brute(s: Tensor, x: Tensor) -> Tensor:
        with use_backend("reference"):
            return jacobian_squared_sum(s.double(), x.double(), case.geometry)

    def into(out: Tensor, decay: float, scale: float, s: Tensor, x: Tensor) -> None:
        given = {"out": out, "decay": decay, "scale": scale}
        assert sparse_squared_sum(s, x, case.geometry, **given) is out

    return Call(
        f"sparse_squared_sum-{shared}-{case}",
        lambda dtype, integers=False: case.draw(dtype, integers, shared)[:2],
        lambda s, x: sparse_squared_sum(s, x, case.geometry),
        brute,
        into,
        2 * prod(case.geometry.output_size(case.size)) + case.columns * case.samples,
        (0, 1),
    )


def sparse_pulled(case: sparse.Case, shared: bool) -> Call:
    stride, padding, dilation, _ = case.geometry.arguments
    rest = (list(case.size), stride, padding, dilation)

    def into(out: Tensor, decay: float, scale: float, s: Tensor, weight: Tensor) -> None:
        torch.ops.lapkernels.sparse_conv_input_(out, decay, scale, s, weight, *rest)

    return Call(
        f"sparse_conv_input-{shared}-{case}",
        lambda dtype, integers=False: case.draw(dtype, integers, shared)[::2],
        lambda s, weight: sparse_conv_input(s, weight, case.size, case.geometry),
        partial(_dense, case),
        into,
        case.outputs * prod(case.geometry.kernel_size),
        (0, 1),
    )


def calls(window: Sequence[windows.Case], zeros: Sequence[sparse.Case] = ()) -> list[Call]:
    """Both ops on windows, and both on columns that share zeros, each in two ways."""
    pairs = [
        *product((window_sum, window_pulled), window),
        *product((sparse_sum, sparse_pulled), zeros),
    ]
    return [make(case, way) for make, case in pairs for way in (False, True)]  # pyright: ignore


def over(chosen: Sequence[Call]) -> Any:
    assert chosen, "no case would run"
    return pytest.mark.parametrize(
        "call", chosen, ids=[f"{k}-{c.id[:24]}" for k, c in enumerate(chosen)]
    )


FEW = calls(windows.FEW, sparse.FEW)
# Other paddings, and factors that are left out.
OTHERS = [
    *(window_pulled(case, way, scaled=False) for case in windows.CASES for way in (False, True)),
    *(
        sparse_sum(replace(case, geometry=Geometry.conv(3, 1, 1, padding_mode=mode)), True)
        for case in sparse.FEW
        for mode in ("reflect", "replicate", "circular")
    ),
]  # fmt: skip
RANDOM = [*calls(windows.CASES, [*sparse.RANDOM, *sparse.FEW]), *OTHERS]
SIZES = calls([*windows.CHANNELS, *windows.LANES, *windows.WINDOWS], sparse.TILES)
MANY = [plain(3, 3, 3, 3, 1000), plain(16, 16, 2, 1, 301), plain(40, 33, 2, 2, 70)]


@over(RANDOM)
@pytest.mark.usefixtures("kernel")
def test_equals_brute_force(call: Call, dtype: torch.dtype) -> None:
    given = call.draw(dtype)
    wanted, found = call.brute(*given), call.run(*given)
    assert found.dtype == dtype
    tolerance = torch.finfo(dtype).eps * (call.summands + 6) * call.magnitude(given)
    # Where no tap meets a window, or all is zero, zero is the right answer.
    assert_within(found, wanted, tolerance, empty=not wanted.any())


@over([*RANDOM, *SIZES])
@pytest.mark.usefixtures("kernel")
def test_is_exact_on_integers(call: Call, dtype: torch.dtype) -> None:
    given = call.draw(dtype, True)
    assert call.magnitude(given).max() <= exact_in(dtype), "partial sums might round"
    wanted = call.brute(*given)
    assert_same(call.run(*given), wanted, empty=not wanted.any())


def test_most_random_cases_reach_something() -> None:
    found = [bool(call.brute(*call.draw(torch.float32)).any()) for call in RANDOM]
    assert sum(found) > 0.7 * len(found)


@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.usefixtures("kernel")
def test_lanes_are_samples_of_whole_images(transposed: bool, dims: int, padding: int) -> None:
    case = windows.Case(
        6, 4, (5,) * dims, (11 - 2 * padding,) * dims, (3,) * dims, (2,) * dims, (1,) * dims,
        (padding,) * dims, 2, 3, 7,
    )  # fmt: skip
    geometry = Geometry.conv(3, 2, padding, groups=2, dims=dims, transposed=transposed)
    s, weight, _ = windows.pulled(case, transposed, torch.float32, integers=True)
    size = case.small if transposed else case.large
    images = s.movedim(-1, 1)
    wanted = conv_input(images.flatten(0, 1), weight, size, geometry)
    wanted = wanted.unflatten(0, images.shape[:2]).movedim(1, -1)
    assert_same(window_pulled(case, transposed, False).run(s, weight), wanted)
    small, large = windows.pair(case, transposed, torch.float32, integers=True)
    s, x = (large, small[0]) if transposed else (small, large[0])
    wanted = jacobian_squared_sum(s.movedim(-1, 1), x.movedim(-1, 0), geometry)
    assert_same(window_sum(case, transposed).run(small, large), wanted)


@pytest.mark.parametrize("case", windows.FEW, ids=str)
@pytest.mark.usefixtures("kernel")
def test_columns_on_both_sides(case: windows.Case) -> None:
    call = window_sum(case, False)
    small, large = call.draw(torch.float32, True)
    large = torch.stack([large[0] + v for v in range(case.columns)])
    wanted = call.brute(small, large)
    assert_same(call.run(small, large), wanted, empty=not wanted.any())


@over(FEW)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("kernel")
def test_any_memory_format(call: Call, layout: str) -> None:
    given = call.draw(torch.float32, True)
    wanted, change = call.brute(*given), LAYOUTS[layout]
    for chosen in range(len(given)):
        changed = [change(t) if k == chosen else t for k, t in enumerate(given)]
        assert_same(call.run(*changed), wanted, empty=not wanted.any())
    assert_same(call.run(*map(change, given)), wanted, empty=not wanted.any())
    index, dim = call.shared
    spread = list(given)
    spread[index] = given[index].narrow(dim, 0, 1).expand_as(given[index])
    wanted = call.brute(*spread)
    assert_same(call.run(*spread), wanted, empty=not wanted.any())


@over(FEW)
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.usefixtures("kernel")
def test_accumulates_anywhere(call: Call, buffer: str, dtype: torch.dtype) -> None:
    given = call.draw(dtype, True)
    value = call.brute(*given)
    target = BUFFERS[buffer](value.to(dtype))
    target.view.fill_(4.0)
    call.into(target.view, 0.5, 3.0, *given)
    assert_same(target.view, 2.0 + 3.0 * value)
    target.assert_untouched_outside()
    target.view.fill_(float("nan"))
    call.into(target.view, 0.0, 1.0, *given)
    assert_same(target.view, value, empty=not value.any())


@over([*calls([*MANY, plain(3, 3, 9, 3, 64)], [conv(16, 64, 13, 3, 3, 5, 0.2)]), *FEW])
@pytest.mark.usefixtures("cpp")
def test_threads_give_the_same_bits(call: Call) -> None:
    given = call.draw(torch.float32)
    assert_same_bits(lambda: call.run(*given), empty=True)


@over(calls(MANY))
@pytest.mark.usefixtures("cpp")
def test_many_lanes_equal_the_reference(call: Call, dtype: torch.dtype) -> None:
    given = call.draw(dtype)
    found = call.run(*given)
    with use_backend("reference"):
        wanted = call.run(*(tensor.double() for tensor in given))
        magnitude = call.run(*(tensor.double().abs() for tensor in given))
    assert_within(found, wanted, torch.finfo(dtype).eps * (call.summands + 6) * magnitude)


@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])
@pytest.mark.parametrize("case", MANY, ids=str)
@pytest.mark.usefixtures("cpp")
def test_lanes_may_be_split(case: windows.Case, transposed: bool) -> None:
    call = window_pulled(case, transposed)
    s, weight, factor = call.draw(torch.float32, True)
    cut = case.lanes // 3
    lanes = (slice(0, cut), slice(cut, None))
    parts = [call.run(s[..., one], weight, factor[..., one]) for one in lanes]
    assert_same(torch.cat(parts, -1), call.run(s, weight, factor))


@pytest.mark.parametrize("case", windows.FEW[-3:], ids=str)
@pytest.mark.usefixtures("kernel")
def test_a_bad_lane_stays_in_its_place_and_shows_in_a_sum(case: windows.Case) -> None:
    for transposed in (False, True):
        call = window_pulled(case, transposed)
        s, *rest = call.draw(torch.float32)
        clean = call.run(s, *rest)
        s[..., 1] = float("nan")
        found = call.run(s, *rest)
        assert found[..., 1].isnan().all()
        others = [lane for lane in range(case.lanes) if lane != 1]
        assert torch.equal(found[..., others], clean[..., others])
    small, large = windows.pair(case, False, torch.float32)
    small[..., -1] = float("nan")
    assert window_sum(case, False).run(small, large).isnan().all()


@pytest.mark.parametrize("case", sparse.FEW, ids=str)
@pytest.mark.usefixtures("cpp")
def test_a_bad_entry_stays_in_its_patch(case: sparse.Case) -> None:
    s, _, weight = case.draw(torch.float32)
    s[0, 0, 0] = 0
    s[(0, 0, 0, *(size // 2 for size in s.shape[3:]))] = float("nan")
    found = sparse_conv_input(s, weight, case.size, case.geometry)
    bad = torch.zeros_like(s)
    bad[s.isnan()] = 1
    assert torch.equal(found.isnan(), _dense(case, bad, torch.ones_like(weight)) != 0)


@pytest.mark.parametrize("case", windows.FEW, ids=str)
@pytest.mark.usefixtures("kernel")
def test_no_windows(case: windows.Case) -> None:
    small, large = windows.pair(case, False, torch.float32)
    total = window_sum(case, False)
    for cut in (
        (small[..., :0], large[..., :0]),
        (small[:0], large),
        (small[:, :, :0], large),
        (small, large[:, :, :0]),
    ):
        out = torch.full(case.weight, 4.0)
        total.into(out, 0.5, 1.0, *cut)
        assert (out == 2.0).all()
        found = total.run(*cut)
        assert found.shape == case.weight and not found.any()
    assert total.run(small[:, :0], large).shape == (0, *case.weight[1:])
    for transposed in (False, True):
        pulled = window_pulled(case, transposed)
        s, weight, factor = pulled.draw(torch.float32)
        whole = pulled.run(s, weight, factor)
        assert pulled.run(s[..., :0], weight, factor[..., :0]).shape[-1] == 0
        assert pulled.run(s[:0], weight, factor).shape == (0, *whole.shape[1:])
        found = pulled.run(s[:, :, :0], weight, factor)
        assert found.shape == whole.shape and not found.any()
        size = [0] * len(case.kernel)
        assert window_pull(s, weight, size, *case.places, transposed).numel() == 0


@pytest.mark.usefixtures("kernel")
def test_no_columns() -> None:
    case = sparse.FEW[0]
    s, x, weight = case.draw()
    total, pulled = sparse_sum(case, True), sparse_pulled(case, True)
    assert not total.run(torch.zeros_like(s), x).any()
    assert not pulled.run(torch.zeros_like(s), weight).any()
    for empty in (s[:0], s[:, :0]):
        found = total.run(empty, x[: empty.shape[1]])
        assert found.shape == weight.shape and not found.any()
        assert pulled.run(empty, weight).shape[:2] == empty.shape[:2]
    found = pulled.run(s[:, :, :0], weight[:0])
    assert found.shape == pulled.run(s, weight).shape and not found.any()


@over(calls([windows.TINY, plain(2, 2, 2, 2, 3)], [conv(2, 2, 4, 2, 2, 2, 0.5, padding=1)]))
@pytest.mark.usefixtures("kernel")
def test_gradient(call: Call) -> None:
    given = [tensor.requires_grad_() for tensor in call.draw(torch.float64)]
    assert torch.autograd.gradcheck(call.run, given)


CASE, ZEROS = plain(3, 2, 2), sparse.FEW[0]
SMALL, LARGE = windows.pair(CASE, False, torch.float32)
COLUMNS, WEIGHT, FACTOR = windows.pulled(CASE, False, torch.float32)
S, X, W = ZEROS.draw()
PLAIN = ZEROS.geometry
window, pull = window_sum(CASE, False).run, window_pulled(CASE, False).run
total, sparsely = sparse_sum(ZEROS, True).run, sparse_pulled(ZEROS, True).run
UNIT = ([1, 1], [1, 1], [0, 0])
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "sum, rank": (lambda: window(SMALL[0], LARGE), "small"),
    "sum, rank of large": (lambda: window(SMALL, LARGE[0]), "large"),
    "sum, integers": (lambda: window(SMALL.long(), LARGE), "small"),
    "sum, dtypes": (lambda: window(SMALL, LARGE.double()), "large"),
    "sum, devices": (lambda: window(SMALL, LARGE.to("meta")), "large"),
    "sum, lanes": (lambda: window(SMALL, LARGE[..., :3]), "large has 3 lanes"),
    "sum, columns": (lambda: window(SMALL, LARGE.expand(3, -1, -1, -1, -1)), "3 columns"),
    "sum, groups": (lambda: window_squared_sum(SMALL, LARGE, [3, 3], *UNIT, 2), "groups=2"),
    "sum, kernel": (lambda: window_squared_sum(SMALL, LARGE, [], [], [], [], 1), "kernel_size"),
    "sum, tap": (lambda: window_squared_sum(SMALL, LARGE, [3, 0], *UNIT, 1), "kernel_size"),
    "sum, stride": (
        lambda: window_squared_sum(SMALL, LARGE, [3, 3], [1, 0], *UNIT[1:], 1), "stride",
    ),
    "sum, offset": (
        lambda: window_squared_sum(SMALL, LARGE, [3, 3], *UNIT[:2], [0], 1), "offset",
    ),
    "sum, out": (
        lambda: window_squared_sum(SMALL, LARGE, [3, 3], *UNIT, 1, out=torch.ones(3, 2, 3)), "out",
    ),
    "pull, rank": (lambda: pull(COLUMNS[0], WEIGHT), r"\bs\b"),
    "pull, rank of weight": (lambda: pull(COLUMNS, WEIGHT[0, 0]), "weight"),
    "pull, integers": (lambda: pull(COLUMNS.long(), WEIGHT), r"\bs\b"),
    "pull, dtypes": (lambda: pull(COLUMNS, WEIGHT.double()), "weight"),
    "pull, dtype of factor": (lambda: pull(COLUMNS, WEIGHT, FACTOR.double()), "factor"),
    "pull, devices": (lambda: pull(COLUMNS, WEIGHT.to("meta")), "weight"),
    "pull, channels": (lambda: pull(COLUMNS[:, :2], WEIGHT), "s has 2 channels"),
    "pull, factor": (lambda: pull(COLUMNS, WEIGHT, FACTOR[..., 1:]), "factor"),
    "pull, size": (lambda: window_pull(COLUMNS, WEIGHT, [4], *UNIT), "size"),
    "pull, negative size": (lambda: window_pull(COLUMNS, WEIGHT, [4, -1], *UNIT), "size"),
    "pull, groups": (lambda: window_pull(COLUMNS, WEIGHT, [4, 4], *UNIT, 2), "groups=2"),
    "pull, stride": (lambda: window_pull(COLUMNS, WEIGHT, [4, 4], [0, 1], *UNIT[1:]), "stride"),
    "pull, dilation": (
        lambda: window_pull(COLUMNS, WEIGHT, [4, 4], [1, 1], [1], [0, 0]), "dilation",
    ),
    "zeros, rank": (lambda: total(S[0], X), r"\bs\b"),
    "zeros, dtypes": (lambda: total(S, X.float()), "dtype"),
    "zeros, integers": (lambda: total(S.long(), X), r"\bs\b"),
    "zeros, samples": (lambda: total(S[:, :1], X), "samples"),
    "zeros, positions": (lambda: total(S[..., 1:], X), "output"),
    "zeros, out": (lambda: sparse_squared_sum(S, X, PLAIN, out=W[1:]), "out"),
    "zeros pulled, rank": (lambda: sparsely(S[0], W), r"\bs\b"),
    "zeros pulled, rank of weight": (lambda: sparsely(S, W[0]), "weight"),
    "zeros pulled, dtypes": (lambda: sparsely(S, W.float()), "weight"),
    "zeros pulled, channels": (lambda: sparsely(S[:, :, 1:], W), "weight"),
    "zeros pulled, kernel": (lambda: sparsely(S, W[..., 1:]), "weight"),
    "zeros pulled, size": (lambda: sparse_conv_input(S, W, (3, 3), PLAIN), "output"),
    "zeros pulled, padding mode": (
        lambda: sparse_conv_input(S, W, ZEROS.size, Geometry.conv(3, padding_mode="circular")),
        "padding_mode",
    ),
    **{
        f"{name}, {word}": (lambda run=run, geometry=geometry: run(geometry), word)
        for word, geometry in {
            "groups=2": Geometry.conv(3, groups=2),
            "transposed": Geometry.conv(3, transposed=True),
            "convolution": Geometry(),
        }.items()
        for name, run in {
            "zeros": lambda geometry: sparse_squared_sum(S, X, geometry),
            "zeros pulled": lambda geometry: sparse_conv_input(S, W, ZEROS.size, geometry),
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.usefixtures("kernel")
def test_wrong_argument_is_named(what: str) -> None:
    call, message = WRONG[what]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.skipif(NATIVE.path is None, reason=f"no compiled library: {NATIVE.reason}")
def test_choice_goes_by_zeros_layer_and_backend() -> None:
    few, many = (conv(3, 8, 12, 3, 2, 2, density).draw()[0] for density in (0.05, 1.0))
    few = few.repeat(LOOKED_FOR // few.numel() + 1, 1, 1, 1, 1)
    many = many.repeat(LOOKED_FOR // many.numel() + 1, 1, 1, 1, 1)
    with use_backend("auto"):
        assert mostly_zero(few, PLAIN)
        assert not mostly_zero(many, PLAIN)
        assert not mostly_zero(few, Geometry.conv(3, groups=2))
        assert not mostly_zero(few, Geometry.conv(3, transposed=True))
        assert not mostly_zero(few[:0], PLAIN)
    for backend in ("reference", "cpp"):
        with use_backend(backend):
            assert not mostly_zero(few, PLAIN)
