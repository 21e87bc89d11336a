"""Nearest, linear and cubic resizes."""

from __future__ import annotations

from typing import Any

from lapkernels.rules import MixesSamples
from tests.rules import check
from tests.rules.calls import Case, aten, case, x

IN = {1: (5,), 2: (4, 3), 3: (2, 3, 2)}
OUT = {1: [8], 2: [7, 2], 3: [3, 4, 5]}


def _sizes(name: str, spatial: int, *args: Any) -> list[Case]:
    op = getattr(aten, name).default
    return [
        *case(f"{name}{args}", op, lambda: (x(3, 2, *IN[spatial]), OUT[spatial], *args)),
        *case(
            f"{name}{args}-merged",
            op,
            lambda: (x(6, 1, *IN[spatial], inner=2), OUT[spatial], *args),
        ),
    ]


CASES: list[Case] = [
    *(
        c
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for spatial in (1, 2, 3)
        for c in _sizes(f"{kind}{spatial}d", spatial)
    ),
    *case(
        "nearest-scales", aten.upsample_nearest2d.default, lambda: (x(3, 1, 3, 3), [4, 4], 1.5, 1.4)
    ),
    *(
        c
        for size, *scales in (
            ([6, 6],),
            ([6, 6], 3.0, 2.0),
            ([2, 6], None, 2.0),
            ([2, 3], 1.0, 1.0),
            ([10, 6], 5.0, 2.0),
            ([4, 6], 2.3, 1.7),
        )
        for c in case(
            f"nearest-whole-{size}-{scales}",
            aten.upsample_nearest2d.default,
            lambda size=size, scales=scales: (x(3, 2, 2, 3), size, *scales),
        )
    ),
    *(
        c
        for corners in (False, True)
        for name, spatial in (
            ("upsample_linear1d", 1),
            ("upsample_bilinear2d", 2),
            ("upsample_bicubic2d", 2),
            ("upsample_trilinear3d", 3),
        )
        for c in _sizes(name, spatial, corners)
    ),
    *_sizes("_upsample_bilinear2d_aa", 2, False),
    *_sizes("_upsample_bicubic2d_aa", 2, False),
    *_sizes("upsample_bilinear2d", 2, False, 1.7, 0.6),
]


test_rule = check.each_rule(CASES)


def test_over_samples_is_refused() -> None:
    (one, _) = case("over", aten.upsample_nearest1d.default, lambda: (x(2, 2, 3, dim=2), [6]))
    check.refused(one, MixesSamples, "samples")
