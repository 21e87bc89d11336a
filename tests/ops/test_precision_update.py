"""The running precision of an online posterior, over whole lists in place."""

from __future__ import annotations

import pytest
import torch

from lapkernels.ops import precision_update
from tests.ops.compare import assert_same, assert_within
from tests.ops.layouts import BUFFERS
from tests.ops.lists import many


@pytest.mark.usefixtures("every_backend")
def test_updates_every_list_entry(dtype: torch.dtype) -> None:
    precision, diagonal = many(dtype, 5, positive=True), many(dtype, 6)
    before = [h.clone() for h in precision]
    kept = [d.clone() for d in diagonal]
    assert precision_update(precision, diagonal, 0.9, 3.0) is None
    eps = torch.finfo(dtype).eps
    for h, old, d, same in zip(precision, before, diagonal, kept, strict=True):
        parts = 0.9 * old.double(), 3.0 * d.double()
        magnitude = parts[0].abs() + parts[1].abs()
        # Two products, whose factors are rounded too, and one sum.
        assert_within(h, parts[0] + parts[1], 3 * eps * magnitude, empty=not h.numel())
        assert torch.equal(d, same)


@pytest.mark.usefixtures("every_backend")
def test_is_exact_on_integers(dtype: torch.dtype) -> None:
    precision = [(h * 4).round() for h in many(dtype, 7)]
    diagonal = [(d * 4).round() for d in many(dtype, 8)]
    wanted = [0.5 * h + 3 * d for h, d in zip(precision, diagonal, strict=True)]
    precision_update(precision, diagonal, 0.5, 3.0)
    for h, value in zip(precision, wanted, strict=True):
        assert_same(h, value, empty=not h.numel())


@pytest.mark.usefixtures("every_backend")
def test_scale_is_one_by_default() -> None:
    precision = [torch.full((3,), 8.0)]
    precision_update(precision, [torch.full((3,), 2.0)], 0.5)
    assert_same(precision[0], torch.full((3,), 6.0))


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.usefixtures("every_backend")
def test_writes_nowhere_else(buffer: str) -> None:
    target = BUFFERS[buffer](torch.ones(5, 7))
    target.view.fill_(4.0)
    precision_update([target.view], [torch.ones(7, 5).T], 0.5, 3.0)
    assert_same(target.view, torch.full((5, 7), 5.0))
    target.assert_untouched_outside()


@pytest.mark.usefixtures("every_backend")
def test_no_decay_means_the_old_content_is_not_read() -> None:
    precision = [torch.full((5,), float("nan"))]
    precision_update(precision, [torch.ones(5)], 0.0, 2.0)
    assert_same(precision[0], torch.full((5,), 2.0))


@pytest.mark.usefixtures("every_backend")
def test_bad_input() -> None:
    three = torch.ones(3)
    with pytest.raises(ValueError, match=r"diagonal\[0\]"):
        precision_update([three], [torch.ones(1)], 0.5)
    with pytest.raises(TypeError, match=r"diagonal\[0\]"):
        precision_update([three], [three.double()], 0.5)
    with pytest.raises(ValueError, match="diagonal has 2"):
        precision_update([three], [three, three], 0.5)
    with pytest.raises(RuntimeError):
        precision_update([torch.ones(1).expand(3)], [three], 0.5)
