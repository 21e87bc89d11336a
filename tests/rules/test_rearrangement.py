"""Reshapes, joins, cuts, turns, repeats and windows."""

from __future__ import annotations

import torch

from tests.rules import check
from tests.rules.calls import Case, aten, case, k, w, x

CASES: list[Case] = [
    *case("view", aten.view.default, lambda: (x(3, 4), [3, 2, 2])),
    *case("view-merge", aten.view.default, lambda: (x(3, 4), [12])),
    *case("view-unmerge", aten.view.default, lambda: (x(12, inner=4), [3, 2, 2])),
    *case("unsafe-view", aten._unsafe_view.default, lambda: (x(2, 3, 2, dim=1), [6, 2])),
    *case("reshape", aten.reshape.default, lambda: (x(3, 4), [3, 4, 1])),
    *case("reshape-alias", aten._reshape_alias.default, lambda: (x(3, 4), [12], [1])),
    *case("unsqueeze", aten.unsqueeze.default, lambda: (x(3, 4), 0)),
    *case("squeeze", aten.squeeze.dim, lambda: (x(3, 1, 4), 1)),
    *case("alias", aten.alias.default, lambda: (x(3, 4),)),
    *case("lift-fresh", aten.lift_fresh.default, lambda: (x(3, 4),)),
    *case("clone", aten.clone.default, lambda: (x(3, 4),)),
    *case("contiguous", aten.contiguous.default, lambda: (x(3, 4),)),
    *case("to-copy", aten._to_copy.default, lambda: (x(3, 4),), dtype=torch.float64),
    *case("permute", aten.permute.default, lambda: (x(3, 4, 2), [2, 0, 1])),
    *case("transpose", aten.transpose.int, lambda: (x(3, 4, 2), 0, -1)),
    *case("t", aten.t.default, lambda: (x(3, 4),)),
    *case("expand", aten.expand.default, lambda: (x(3, 1), [2, 3, 4])),
    *case("slice", aten.slice.Tensor, lambda: (x(3, 6), 1, 1, 6, 2)),
    *case("slice-blocks", aten.slice.Tensor, lambda: (x(12, 2, outer=4), 0, 3, 9)),
    *case(
        "slice-blocks-to-the-end", aten.slice.Tensor, lambda: (x(12, 2, outer=2, inner=2), 0, -6)
    ),
    *case("select", aten.select.int, lambda: (x(2, 3, 4, dim=1), 0, 1)),
    *case("split", aten.split.Tensor, lambda: (x(3, 5), 2, 1)),
    *case("split-blocks", aten.split.Tensor, lambda: (x(12, 2, outer=4), 6)),
    *case("split-sizes", aten.split_with_sizes.default, lambda: (x(3, 5), [1, 4], -1)),
    *case("unsafe-split", aten.unsafe_split.Tensor, lambda: (x(3, 5), 2, 1)),
    *case("unsafe-sizes", aten.unsafe_split_with_sizes.default, lambda: (x(3, 5), [1, 4], -1)),
    *case("chunk", aten.chunk.default, lambda: (x(3, 5), 2, 1)),
    *case("unsafe-chunk", aten.unsafe_chunk.default, lambda: (x(3, 5), 2, 1)),
    *case("unbind", aten.unbind.int, lambda: (x(2, 3, 2, dim=1), 0)),
    *case("cat", aten.cat.default, lambda: ([x(3, 2), x(3, 1)], 1)),
    *case("cat-twice", aten.cat.default, lambda: ([x(3, 2)] * 2, 1)),
    *case("cat-along-samples", aten.cat.default, lambda: ([x(3, 2), x(6, 2, outer=2)], 0)),
    *case("cat-empty", aten.cat.default, lambda: ([k(torch.zeros(0)), x(3, 2), x(3, 1)], 1)),
    *case("cat-empty-along-samples", aten.cat.default, lambda: ([x(3, 2), k(torch.zeros(0))], 0)),
    *case("cat-weight", aten.cat.default, lambda: ([w(3, 1, 2), x(3, 2, 2)], 1)),
    *case("cat-weight-merged", aten.cat.default, lambda: ([x(6, 2, inner=2), w(6, 1)], 1)),
    *case("stack", aten.stack.default, lambda: ([x(3, 2), x(3, 2)], 0)),
    *case("stack-weight", aten.stack.default, lambda: ([x(3, 2), w(3, 2)], 1)),
    *case("flip", aten.flip.default, lambda: (x(3, 4, 2), [1, -1])),
    *case("roll", aten.roll.default, lambda: (x(3, 4), [1], [1])),
    *case("roll-two", aten.roll.default, lambda: (x(2, 3, 4, dim=1), [1, -2], [0, 2])),
    *case("roll-all", aten.roll.default, lambda: (x(3, 4), [5]))[1:],
    *case("rot90", aten.rot90.default, lambda: (x(3, 2, 4), 1, [1, 2])),
    *case("pixel-shuffle", aten.pixel_shuffle.default, lambda: (x(3, 8, 2, 3), 2)),
    *case("pixel-unshuffle", aten.pixel_unshuffle.default, lambda: (x(6, 2, 4, 2, inner=2), 2)),
    *case("channel-shuffle", aten.channel_shuffle.default, lambda: (x(3, 6, 2, 2), 3)),
    *case("native-shuffle", aten.native_channel_shuffle.default, lambda: (x(3, 6, 2, 2), 2)),
    *case("tril", aten.tril.default, lambda: (x(3, 4, 4),)),
    *case("triu", aten.triu.default, lambda: (x(3, 2, 4), 1)),
    *case("repeat", aten.repeat.default, lambda: (x(3, 2), [1, 3])),
    *case("repeat-samples", aten.repeat.default, lambda: (x(3, 2), [2, 1])),
    *case("repeat-new", aten.repeat.default, lambda: (x(6, 2, inner=2), [2, 2, 1])),
    *case("unfold", aten.unfold.default, lambda: (x(3, 6), 1, 3, 2)),
    *case("unfold-first", aten.unfold.default, lambda: (x(5, 3, dim=1), 0, 2, 1)),
    *case("diagonal", aten.diagonal.default, lambda: (x(3, 4, 4), 1, 1, 2)),
    *case("diagonal-outer", aten.diagonal.default, lambda: (x(2, 3, 2, dim=1), 0, 0, 2)),
    *case("diag-embed", aten.diag_embed.default, lambda: (x(3, 2), 1)),
    *case("diag-embed-dims", aten.diag_embed.default, lambda: (x(3, 2), 0, 0, 2)),
    *case("as-strided", aten.as_strided.default, lambda: (x(3, 4), [3, 3, 2], [4, 1, 1])),
    *case("as-strided-turned", aten.as_strided.default, lambda: (x(3, 4), [2, 3], [1, 4], 1)),
    *case("copy", aten.copy.default, lambda: (x(3, 4, active=False), x(3, 1))),
]


test_rule = check.each_rule(CASES)


test_along_samples_is_refused = check.each_refused(
    [
        (aten.flip.default, lambda: (x(3, 4), [0])),
        (aten.roll.default, lambda: (x(3, 4), [1], [0])),
        (aten.roll.default, lambda: (x(3, 4), [1])),
        (aten.slice.Tensor, lambda: (x(3, 4), 0, 1, 3)),
        (aten.slice.Tensor, lambda: (x(12, 2, outer=2, inner=2), 0, 0, 4)),
        (aten.slice.Tensor, lambda: (x(9, 2, outer=3), 0, 1, 7)),
        (aten.select.int, lambda: (x(3, 4), 0, 1)),
        (aten.split.Tensor, lambda: (x(4, 2), 2)),
        (aten.unbind.int, lambda: (x(3, 2),)),
        (aten.cat.default, lambda: ([x(3, 2), x(6, 2, inner=2)], 0)),
        (aten.cat.default, lambda: ([x(3, 2), w(3, 2)], 0)),
        (aten.cat.default, lambda: ([x(3, 3), x(3, 3, dim=1)], 1)),
        (aten.tril.default, lambda: (x(3, 4),)),
        (aten.unfold.default, lambda: (x(3, 4), 0, 2, 1)),
        (aten.diagonal.default, lambda: (x(3, 3),)),
        (aten.view.default, lambda: (x(4, 3), [6, 2])),
        (aten.as_strided.default, lambda: (x(3, 4), [4], [2])),
    ]
)


def test_a_strided_view_of_a_turned_tensor_is_left_to_autograd() -> None:
    turned = check.Samples(3, 1)
    entry = torch.randn(3, 4, dtype=torch.float64).T

    (_, one) = case(
        "strided", aten.as_strided.default, lambda: (check.Arg(entry, turned), [2, 3], [1, 4])
    )
    check.rule(one)
