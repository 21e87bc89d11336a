"""Comparisons that cannot pass on nothing: what is expected must not be all zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def assert_within(found: Tensor, wanted: Tensor, tolerance: Tensor, *, empty: bool = False) -> None:
    """|found - wanted| <= tolerance, entry by entry; with `empty` a sum over nothing is wanted."""
    _assert_meaningful(found, wanted, empty)
    excess = (found.double() - wanted.double()).abs() - tolerance
    # A comparison with NaN is false, so this asks for what should hold, not for what should not.
    wrong = ~(excess <= 0)
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} entries are off, the first at "
        f"{wrong.nonzero()[0].tolist()}: {found[wrong][0]} for {wanted[wrong][0]}, "
        f"tolerance {tolerance[wrong][0]:.3g}"
    )


def assert_same(found: Tensor, wanted: Tensor, *, empty: bool = False) -> None:
    """Equality of every entry, after conversion to float64, which is exact."""
    _assert_meaningful(found, wanted, empty)
    different = found.double() != wanted.double()
    assert not different.any(), (
        f"{int(different.sum())} of {different.numel()} entries differ, the first at "
        f"{different.nonzero()[0].tolist()}: {found[different][0]} for {wanted[different][0]}"
    )


def _assert_meaningful(found: Tensor, wanted: Tensor, empty: bool) -> None:
    assert found.shape == wanted.shape, f"shape {tuple(found.shape)} for {tuple(wanted.shape)}"
    if empty:
        assert not wanted.any(), "a sum over nothing must be zero"
    else:
        assert wanted.any(), "nothing but zeros is expected: the case tests nothing"


def assert_same_bits(run: Callable[[], Tensor | Sequence[Tensor]], *, empty: bool = False) -> None:
    """The results for any number of threads."""
    found: list[Tensor] = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        result = run()
        parts = [result] if isinstance(result, Tensor) else result
        found.append(torch.cat([part.flatten() for part in parts]))
    assert empty or found[0].any(), "nothing but zeros: the case tests nothing"
    assert all(torch.equal(found[0], other) for other in found[1:])


def exact_in(dtype: torch.dtype) -> int:
    """The largest integer up to which `dtype` holds all of them."""
    return round(2 / torch.finfo(dtype).eps)
