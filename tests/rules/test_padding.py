"""Padding and windows of images."""

from __future__ import annotations

from tests.rules import check
from tests.rules.calls import Case, aten, case, x

CASES: list[Case] = [
    *case("constant", aten.constant_pad_nd.default, lambda: (x(3, 2, 4), [1, 2], 0.5)),
    *case("constant-cut", aten.constant_pad_nd.default, lambda: (x(3, 4, 4), [-1, 2, 1, -1])),
    *case("constant-second", aten.constant_pad_nd.default, lambda: (x(2, 3, dim=1), [0, 0, 1, 1])),
    *(
        c
        for kind in ("reflection", "replication")
        for c in [
            *case(f"{kind}1", getattr(aten, f"{kind}_pad1d").default, lambda: (x(3, 2, 4), [1, 2])),
            *case(
                f"{kind}1-no-batch",
                getattr(aten, f"{kind}_pad1d").default,
                lambda: (x(6, 4, inner=2), [3, 2]),
            ),
            *case(
                f"{kind}2",
                getattr(aten, f"{kind}_pad2d").default,
                lambda: (x(6, 2, 3, 4, outer=2), [1, 2, 2, 0]),
            ),
            *case(
                f"{kind}3",
                getattr(aten, f"{kind}_pad3d").default,
                lambda: (x(3, 1, 2, 3, 2), [1, 1, 0, 2, 1, 1]),
            ),
        ]
    ),
    *case("pad-constant", aten.pad.default, lambda: (x(3, 2, 4), [1, 2], "constant", 0.5)),
    *case("pad-reflect", aten.pad.default, lambda: (x(3, 2, 4, 3), [1, 2, 0, 3], "reflect")),
    *case("pad-replicate", aten.pad.default, lambda: (x(3, 2, 4), [1, 2], "replicate")),
    *case("circular1", aten.pad.default, lambda: (x(3, 2, 4), [4, 1], "circular")),
    *case("circular2", aten.pad.default, lambda: (x(3, 2, 4, 3), [0, 2, 3, 4], "circular")),
    *case("im2col", aten.im2col.default, lambda: (x(3, 2, 4, 3), [2, 2], [1, 1], [1, 0], [1, 2])),
    *case("im2col-merged", aten.im2col.default,
        lambda: (x(6, 1, 4, 4, inner=2), [2, 2], [2, 1], [0, 0], [1, 1])),
    *case(
        "im2col-no-batch", aten.im2col.default, lambda: (x(2, 4, 3), [2, 2], [1, 1], [0, 0], [1, 1])
    )[1:],
    *case("col2im", aten.col2im.default,
        lambda: (x(3, 8, 6), [3, 4], [2, 2], [1, 1], [0, 0], [1, 1])),
]  # fmt: skip


test_rule = check.each_rule(CASES)


test_over_samples_is_refused = check.each_refused([
    (aten.constant_pad_nd.default, lambda: (x(2, 3, dim=1), [1, 0])),
    (aten.reflection_pad1d.default, lambda: (x(2, 2, 3, dim=2), [1, 1])),
    (aten.im2col.default, lambda: (x(2, 3, 4, 4, dim=1), [2, 2], [1, 1], [0, 0], [1, 1])),
])  # fmt: skip
