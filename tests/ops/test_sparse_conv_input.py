"""Columns pulled back with shared zeros skipped, against all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lapkernels import use_backend
from lapkernels.kernels import NATIVE
from lapkernels.ops import Geometry, conv_input, sparse_conv_input
from lapkernels.ops.serving import LOOKED_FOR
from lapkernels.ops.sparse_squared_sum import mostly_zero
from tests.ops.compare import assert_same, exact_in
from tests.ops.layouts import BUFFERS, LAYOUTS
from tests.ops.sparse import FEW, RANDOM, TILES, Case, assert_close, conv, over

SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])


def run(case: Case, s: Tensor, weight: Tensor) -> Tensor:
    return sparse_conv_input(s, weight, case.size, case.geometry)


def dense(case: Case, s: Tensor, weight: Tensor) -> Tensor:
    value = conv_input(s.flatten(0, 1), weight, case.size, case.geometry)
    return value.unflatten(0, s.shape[:2])


@over([*RANDOM, *FEW])
@SHARED
@pytest.mark.usefixtures("kernel")
def test_equals_the_sum_over_all(case: Case, shared: bool) -> None:
    s, _, weight = case.draw(shared=shared)
    wanted = dense(case, s, weight)
    assert_close(run(case, s, weight), wanted)


@over([*RANDOM, *FEW, *TILES])
@pytest.mark.usefixtures("cpp")
def test_is_exact_on_integers(case: Case, dtype: torch.dtype) -> None:
    s, _, weight = case.draw(dtype, integers=True)
    wanted = dense(case, s.double(), weight.double()).round()
    largest = dense(case, s.double().abs(), weight.double().abs()).max()
    assert largest <= exact_in(dtype), "partial sums might round"
    assert_same(run(case, s, weight), wanted, empty=not wanted.any())


@over(FEW)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("kernel")
def test_any_memory_format(case: Case, layout: str) -> None:
    s, _, weight = case.draw(torch.float32, integers=True)
    wanted = dense(case, s, weight)
    change = LAYOUTS[layout]
    assert_same(run(case, change(s), weight), wanted)
    assert_same(run(case, s, change(weight)), wanted)
    same = s[:, :1].expand_as(s)
    assert_same(run(case, same, weight), dense(case, same, weight))


@over(FEW)
@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.usefixtures("kernel")
def test_accumulates_anywhere(case: Case, buffer: str, dtype: torch.dtype) -> None:
    s, _, weight = case.draw(dtype, integers=True)
    value = dense(case, s, weight)
    stride, padding, dilation, _ = case.geometry.arguments
    arguments = (s, weight, list(case.size), stride, padding, dilation)
    target = BUFFERS[buffer](value)
    target.view.fill_(4.0)
    torch.ops.lapkernels.sparse_conv_input_(target.view, 0.5, 3.0, *arguments)
    assert_same(target.view, 2.0 + 3.0 * value)
    target.assert_untouched_outside()
    target.view.fill_(float("nan"))
    torch.ops.lapkernels.sparse_conv_input_(target.view, 0.0, 1.0, *arguments)
    assert_same(target.view, value)


@over([conv(16, 64, 23, 3, 3, 5, 0.2), *FEW])
@pytest.mark.usefixtures("cpp")
def test_threads_give_the_same_bits(case: Case) -> None:
    before = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        s, _, weight = case.draw(torch.float32)
        results.append(run(case, s, weight))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@over(FEW)
@pytest.mark.usefixtures("cpp")
def test_bad_entry_stays_in_its_patch(case: Case) -> None:
    s, _, weight = case.draw(torch.float32)
    s[0, 0, 0] = 0
    s[(0, 0, 0, *(size // 2 for size in s.shape[3:]))] = float("nan")
    found = run(case, s, weight)
    bad = torch.zeros_like(s)
    bad[s.isnan()] = 1
    assert torch.equal(found.isnan(), dense(case, bad, torch.ones_like(weight)) != 0)


@pytest.mark.usefixtures("kernel")
def test_nothing_to_pull() -> None:
    case = FEW[0]
    s, _, weight = case.draw()
    assert not run(case, torch.zeros_like(s), weight).any()
    assert run(case, s[:0], weight).shape[0] == 0
    assert run(case, s[:, :0], weight).shape[1] == 0
    found = run(case, s[:, :, :0], weight[:0])
    assert found.shape == run(case, s, weight).shape
    assert not found.any()


CASE = FEW[0]
S, _, WEIGHT = CASE.draw()
SIZE, PLAIN = CASE.size, CASE.geometry
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "rank": (lambda: run(CASE, S[0], WEIGHT), r"\bs\b"),
    "rank of weight": (lambda: run(CASE, S, WEIGHT[0]), "weight"),
    "dtypes": (lambda: run(CASE, S, WEIGHT.float()), "weight"),
    "channels": (lambda: run(CASE, S[:, :, 1:], WEIGHT), "weight"),
    "kernel": (lambda: run(CASE, S, WEIGHT[..., 1:]), "weight"),
    "size": (lambda: sparse_conv_input(S, WEIGHT, (3, 3), PLAIN), "output"),
    "padding mode": (
        lambda: sparse_conv_input(S, WEIGHT, SIZE, Geometry.conv(3, padding_mode="circular")),
        "padding_mode",
    ),
    "groups": (lambda: sparse_conv_input(S, WEIGHT, SIZE, Geometry.conv(3, groups=2)), "groups=2"),
    "linear": (lambda: sparse_conv_input(S, WEIGHT, SIZE, Geometry()), "convolution"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.usefixtures("kernel")
def test_wrong_argument_is_named(what: str) -> None:
    call, message = WRONG[what]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.usefixtures("kernel")
def test_gradient() -> None:
    case = conv(2, 2, 4, 2, 2, 2, 0.5, padding=1)
    s, _, weight = (entry.requires_grad_() for entry in case.draw())
    assert torch.autograd.gradcheck(lambda s, weight: run(case, s, weight), (s, weight))


@pytest.mark.skipif(NATIVE.path is None, reason=f"no compiled library: {NATIVE.reason}")
def test_choice_goes_by_zeros_layer_and_backend() -> None:
    few, _, _ = conv(3, 8, 12, 3, 2, 2, 0.05).draw()
    few = few.repeat(LOOKED_FOR // few.numel() + 1, 1, 1, 1, 1)
    many, _, _ = conv(3, 8, 12, 3, 2, 2, 1.0).draw()
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
