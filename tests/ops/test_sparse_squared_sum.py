"""Sums of squared columns that skip shared zeros, against those that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lapkernels.ops import Geometry, jacobian_squared_sum, sparse_squared_sum
from tests.ops.compare import assert_same, exact_in
from tests.ops.layouts import BUFFERS, LAYOUTS
from tests.ops.sparse import FEW, RANDOM, TILES, Case, assert_close, conv, over

SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])


@over([*RANDOM, *FEW])
@SHARED
@pytest.mark.usefixtures("kernel")
def test_equals_the_sum_over_all(case: Case, shared: bool) -> None:
    s, x, _ = case.draw(shared=shared)
    wanted = jacobian_squared_sum(s, x, case.geometry)
    assert_close(sparse_squared_sum(s, x, case.geometry), wanted)


def test_most_random_cases_reach_something() -> None:
    cases = [case for case in RANDOM if case.density > 0]
    found = [bool(jacobian_squared_sum(*case.draw()[:2], case.geometry).any()) for case in cases]
    assert sum(found) > 0.8 * len(found)


@over([*RANDOM, *FEW, *TILES])
@pytest.mark.usefixtures("cpp")
def test_is_exact_on_integers(case: Case, dtype: torch.dtype) -> None:
    s, x, _ = case.draw(dtype, integers=True)
    wanted = jacobian_squared_sum(s.double(), x.double(), case.geometry)
    largest = jacobian_squared_sum(s.double().abs(), x.double().abs(), case.geometry).max()
    assert largest <= exact_in(dtype), "partial sums might round"
    assert_same(sparse_squared_sum(s, x, case.geometry), wanted, empty=not wanted.any())


@over(FEW)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.usefixtures("cpp")
def test_padding_modes(case: Case, mode: str) -> None:
    geometry = Geometry.conv(3, 1, 1, padding_mode=mode)  # pyright: ignore[reportArgumentType]
    same = Case(case.inputs, case.outputs, case.size, geometry, 2, 2, 0.3)
    s, x, _ = same.draw()
    assert_close(sparse_squared_sum(s, x, geometry), jacobian_squared_sum(s, x, geometry))


@over(FEW)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("kernel")
def test_any_memory_format(case: Case, layout: str) -> None:
    s, x, _ = case.draw(torch.float32, integers=True)
    wanted = jacobian_squared_sum(s, x, case.geometry)
    change = LAYOUTS[layout]
    assert_same(sparse_squared_sum(change(s), x, case.geometry), wanted)
    assert_same(sparse_squared_sum(s, change(x), case.geometry), wanted)
    same = s[:, :1].expand_as(s)
    wanted = jacobian_squared_sum(same, x, case.geometry)
    assert_same(sparse_squared_sum(same, x, case.geometry), wanted)


@over(FEW)
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.usefixtures("kernel")
def test_accumulates_anywhere(case: Case, buffer: str, dtype: torch.dtype) -> None:
    s, x, weight = case.draw(dtype, integers=True)
    value = jacobian_squared_sum(s, x, case.geometry)
    target = BUFFERS[buffer](weight)
    target.view.fill_(4.0)
    sparse_squared_sum(s, x, case.geometry, out=target.view, decay=0.5, scale=3.0)
    assert_same(target.view, 2.0 + 3.0 * value)
    target.assert_untouched_outside()
    target.view.fill_(float("nan"))
    sparse_squared_sum(s, x, case.geometry, out=target.view, decay=0.0)
    assert_same(target.view, value)


@over([conv(16, 64, 13, 3, 3, 5, 0.2), *FEW])
@pytest.mark.usefixtures("cpp")
def test_threads_give_the_same_bits(case: Case) -> None:
    before = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        s, x, _ = case.draw(torch.float32)
        results.append(sparse_squared_sum(s, x, case.geometry))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.usefixtures("kernel")
def test_nothing_to_sum() -> None:
    case = FEW[0]
    s, x, weight = case.draw()
    assert not sparse_squared_sum(torch.zeros_like(s), x, case.geometry).any()
    for empty in (s[:0], s[:, :0]):
        found = sparse_squared_sum(empty, x[: empty.shape[1]], case.geometry)
        assert found.shape == weight.shape
        assert not found.any()


CASE = FEW[0]
S, X, WEIGHT = CASE.draw()
PLAIN = CASE.geometry
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "rank": (lambda: sparse_squared_sum(S[0], X, PLAIN), r"\bs\b"),
    "dtypes": (lambda: sparse_squared_sum(S, X.float(), PLAIN), "dtype"),
    "integers": (lambda: sparse_squared_sum(S.long(), X, PLAIN), r"\bs\b"),
    "samples": (lambda: sparse_squared_sum(S[:, :1], X, PLAIN), "samples"),
    "positions": (lambda: sparse_squared_sum(S[..., 1:], X, PLAIN), "output"),
    "groups": (lambda: sparse_squared_sum(S, X, Geometry.conv(3, groups=2)), "groups=2"),
    "transposed": (
        lambda: sparse_squared_sum(S, X, Geometry.conv(3, transposed=True)), "transposed",
    ),
    "linear": (lambda: sparse_squared_sum(S, X, Geometry()), "convolution"),
    "out": (lambda: sparse_squared_sum(S, X, PLAIN, out=WEIGHT[1:]), "out"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.usefixtures("kernel")
def test_wrong_argument_is_named(what: str) -> None:
    call, message = WRONG[what]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.usefixtures("kernel")
def test_gradient() -> None:
    case = conv(2, 2, 4, 2, 2, 2, 0.5, padding=1)
    s, x, _ = (entry.requires_grad_() for entry in case.draw())
    assert torch.autograd.gradcheck(lambda s, x: sparse_squared_sum(s, x, case.geometry), (s, x))
