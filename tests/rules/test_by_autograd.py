"""Ops whose derivative is autograd's; and that no column differs where they go back together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lapkernels.rules import builder_of
from lapkernels.rules.base import local_gradient
from tests.rules import check
from tests.rules.calls import Arg, Built, Case, aten, case, given, k, w, x

CDIST, BAG = aten._cdist_forward.default, aten._embedding_bag.default


def _grid(*shape: int) -> Arg:
    return given(torch.rand(shape, dtype=torch.float64) * 1.6 - 0.8, active=True)


def _bag_tokens() -> Arg:
    return Arg(torch.tensor([0, 1, 1, 3, 2, 2]), check.Samples(3, 0, 1, 2), False)


CASES: list[Case] = [
    *case("grid2", aten.grid_sampler_2d.default,
        lambda: (x(3, 2, 3, 3), _grid(3, 2, 2, 2), 0, 0, False)),
    *case("grid2-nearest", aten.grid_sampler_2d.default,
        lambda: (x(3, 1, 3, 3), k(_grid(3, 2, 2, 2).tensor), 1, 1, True)),
    *case("grid3", aten.grid_sampler_3d.default,
        lambda: (x(3, 1, 2, 3, 2), _grid(3, 1, 2, 2, 3), 0, 0, False)),
    *case("affine-grid", aten.affine_grid_generator.default,
        lambda: (x(3, 2, 3), [3, 1, 2, 2], False)),
    *case("cdist", CDIST, lambda: (x(3, 2, 4), x(3, 3, 4), 2.0, None)),
    *case("cdist-weight", CDIST, lambda: (x(3, 4), w(2, 4), 2.0, None)),
    *case("cdist-weight-merged", CDIST, lambda: (x(6, 4, inner=2), w(2, 4), 1.5, None)),
    *case("cdist-weight-first", CDIST, lambda: (w(2, 4), x(3, 4), 2.0, None)),
    *case("trilinear", aten._trilinear.default, lambda: (x(3, 2), w(4, 2, 2), x(3, 2), *_expand())),
    *case("trilinear-merged", aten._trilinear.default,
        lambda: (x(6, 2, inner=2), w(3, 2, 2), x(6, 2, inner=2), *_expand())),
    *(
        c
        for mode in (0, 1, 2)
        for c in case(
            f"bag-{mode}",
            BAG,
            lambda mode=mode: (w(4, 3), _bag_tokens(), k(torch.tensor([0, 2, 4])), False, mode),
        )
    ),
    *case("bag-without-gradient", aten._embedding_bag_forward_only.default,
        lambda: (k(torch.randn(4, 3)), _bag_tokens(), k(torch.tensor([0, 2, 4])))),
    *case("cumprod", aten.cumprod.default, lambda: (x(3, 4), 1)),
    *case("logcumsumexp", aten.logcumsumexp.default, lambda: (x(3, 4), 1)),
]  # fmt: skip


def _expand() -> tuple[Any, ...]:
    """As torch's bilinear calls it: out[n, o] = sum_ij a[n, i] w[o, i, j] b[n, j]."""
    return ([1, 3], [0], [1, 2], [2, 3])


test_rule = check.each_rule(CASES)


test_across_samples_is_refused = check.each_refused([
    (CDIST, lambda: (x(3, 4), x(3, 4), 2.0, None)),
    (CDIST, lambda: (x(4, 3, dim=1), w(2, 3), 2.0, None)),
    (BAG, lambda: (w(4, 3), _bag_tokens(), k(torch.tensor([0, 3])))),
    (aten.grid_sampler_2d.default, lambda: (x(2, 3, 3, 3, dim=1), _grid(2, 2, 2, 2), 0, 0, False)),
])  # fmt: skip


VECTORISED: dict[str, list[Case]] = {
    "aten::_linalg_solve_ex": case("solve", aten._linalg_solve_ex.default,
        lambda: (x(3, 2, 2), x(3, 2, 2))),
    "aten::linalg_inv_ex": case("inverse", aten.linalg_inv_ex.default, lambda: (x(3, 2, 2),)),
    **{
        one.name: [one]
        for one in CASES
        if one.id in ("trilinear", "cumprod", "logcumsumexp", "grid2", "affine-grid")
    },
}  # fmt: skip


def test_every_vectorised_op_is_tested() -> None:
    assert set(VECTORISED) == local_gradient.VECTORISED


@pytest.mark.parametrize("name", sorted(VECTORISED))
def test_columns_together_are_those_one_at_a_time(name: str) -> None:
    for one in VECTORISED[name]:
        built = Built(one, generic=builder_of(one.name) is None)
        assert isinstance(built.rule, local_gradient.LocalGradient) and built.rule.vectorised
        out = built.outputs[0]
        rest: list[torch.Tensor | None] = [None] * (len(built.outputs) - 1)
        wanted = [arg.active for arg in built.args]
        s = torch.randn(5, *out.shape, dtype=torch.float64)
        together = built.rule.columns([s, *rest], wanted)
        for column in range(5):
            single = built.rule.columns([s[column : column + 1], *rest], wanted)
            for a, b in zip(together, single, strict=True):
                if a is not None and b is not None:
                    check.close(a[column], b[0])
        built.rule.vectorised = False
        loop = built.rule.columns([s, *rest], wanted)
        for a, b in zip(together, loop, strict=True):
            if a is not None and b is not None:
                check.close(a, b)


UNKNOWN: list[Case] = [
    *case("solve", aten._linalg_solve_ex.default, lambda: (x(3, 2, 2), x(3, 2, 2))),
    *case("renorm", aten.renorm.default, lambda: (x(2, 3, dim=1), 2, 1, 0.5)),
    *case("weight-in-an-unknown-op", aten._pdist_forward.default, lambda: (x(3, 2), 2.0))[1:],
    *case("dot-weight", aten.dot.default, lambda: (x(4), w(4)))[1:],
    *case("cross-weight", aten.linalg_cross.default, lambda: (x(4, 3), w(1, 3)), dim=1),
]  # fmt: skip


test_an_op_without_a_rule = check.each_rule(UNKNOWN, generic=True)
