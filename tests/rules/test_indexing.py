"""Reading and writing by index: indices of all samples, or of each."""

from __future__ import annotations

import torch

from tests.rules import check
from tests.rules.calls import Arg, Case, aten, case, given, k, w, x

INDEX, PUT = aten.index.Tensor, aten.index_put.default


def _list(*entries: int) -> Arg:
    return k(torch.tensor(entries, dtype=torch.long))


def _each(*shape: int, below: int = 4) -> Arg:
    return given(torch.randint(0, below, shape))


def _column() -> Arg:
    return k(torch.arange(3).unsqueeze(1))


def _rows() -> Arg:
    return given(torch.arange(3))


def _mask() -> Arg:
    return k(torch.tensor([True, False, True, True]))


CASES: list[Case] = [
    *case("index-select", aten.index_select.default, lambda: (x(3, 4), 1, _list(2, 0, 2))),
    *case("index-select-merged", aten.index_select.default,
        lambda: (x(6, 4, inner=2), -1, _list(3))),
    *case("index-select-weight", aten.index_select.default, lambda: (w(4, 2), 0, _each(3))),
    *case("gather", aten.gather.default, lambda: (x(3, 4), 1, _each(3, 2))),
    *case("gather-constant", aten.gather.default,
        lambda: (x(3, 4), 1, k(torch.tensor([[1], [0], [1]])))),
    *case("gather-weight", aten.gather.default, lambda: (w(3, 4), 1, _each(3, 5))),
    *case("gather-first", aten.gather.default,
        lambda: (x(4, 3, dim=1), 0, k(torch.zeros(2, 3).long()))),
    *case("index", INDEX, lambda: (x(3, 4), [None, _list(2, 0, 0)])),
    *case("index-mask", INDEX, lambda: (x(3, 4, 2), [None, _mask()])),
    *case("index-two", INDEX, lambda: (x(3, 4, 2), [None, _list(2, 0), _list(1, 1)])),
    *case("index-apart", INDEX, lambda: (x(4, 3, 2, dim=1), [_list(2, 0), None, _list(1, 1)])),
    *case("index-own-entry", INDEX, lambda: (x(3, 4), [_rows(), _each(3)])),
    *case("index-own-entries", INDEX,
        lambda: (x(3, 4), [given(torch.arange(3)[:, None]), _each(3, 2)])),
    *case("index-weight", INDEX, lambda: (w(4, 2), [_each(3, 2)])),
    *case("index-weight-second", INDEX, lambda: (w(2, 4), [None, _each(3)])),
    *case("index-samples-again", INDEX, lambda: (x(3, 2), [_list(0, 1, 2, 0, 1, 2)])),
    *case("put", PUT, lambda: (x(3, 4), [None, _list(2, 0)], x(3, 2))),
    *case("put-added", PUT, lambda: (x(3, 4), [None, _list(2, 2)], x(3, 2), True)),
    *case("put-broadcast", PUT, lambda: (x(3, 4), [None, _list(2, 0)], x(3, 1))),
    *case("put-weight", PUT, lambda: (x(3, 4), [None, _list(2, 0)], w(2))),
    *case("put-into-weight", PUT, lambda: (w(3, 4), [None, _list(2, 0)], x(3, 2))),
    *case("put-own-entry", PUT, lambda: (x(3, 4), [_rows(), _each(3)], x(3))),
    *case("put-unsafe", aten._unsafe_index_put.default,
        lambda: (x(3, 4), [None, _list(2, 0)], x(3, 2))),
    *case("slice-scatter", aten.slice_scatter.default, lambda: (x(3, 4), x(3, 2), 1, 1, 3)),
    *case("slice-scatter-weight", aten.slice_scatter.default,
        lambda: (w(3, 4), x(3, 2), 1, 0, 4, 2)),
    *case("select-scatter", aten.select_scatter.default,
        lambda: (x(2, 3, 4, dim=1), x(3, 4), 0, 1)),
    *case("select-scatter-weight", aten.select_scatter.default, lambda: (x(3, 4), w(3), 1, 2)),
    *case("scatter", aten.scatter.src,
        lambda: (x(3, 4), 1, k(torch.tensor([[0, 2]] * 3)), x(3, 2))),
    *case("scatter-each", aten.scatter.src, lambda: (x(3, 4), 1, _each(3, 1), x(3, 1))),
    *case("scatter-value", aten.scatter.value, lambda: (x(3, 4), 1, _each(3, 2), 0.5)),
    *case("scatter-weight", aten.scatter.src, lambda: (x(3, 4), 1, _each(3, 1), w(3, 1))),
    *case("scatter-add", aten.scatter_add.default, lambda: (x(3, 4), 1, _each(3, 2), x(3, 2))),
    *case("index-add", aten.index_add.default, lambda: (x(3, 4), 1, _list(1, 1), x(3, 2))),
    *case("index-add-none", aten.index_add.default, lambda: (x(3, 4), 0, _list(), x(0, 4)))[1:],
    *case("scatter-add-few", aten.scatter_add.default, lambda: (x(3, 4), 1, _each(2, 1), x(2, 1)))[
        1:
    ],
    *case(
        "index-add-scaled", aten.index_add.default, lambda: (x(3, 4), 1, _list(1), x(3, 1)), alpha=2
    )[1:],
    *case("index-copy", aten.index_copy.default, lambda: (x(3, 4), 1, _list(3, 0), x(3, 2))),
    *case("index-fill", aten.index_fill.int_Scalar, lambda: (x(3, 4), 1, _list(3, 0), 2.0)),
]  # fmt: skip


test_rule = check.each_rule(CASES)


test_across_samples_is_refused = check.each_refused([
    (aten.index_select.default, lambda: (x(3, 4), 0, _list(0, 1))),
    (aten.gather.default, lambda: (x(3, 4), 0, k(torch.zeros(2, 4).long()))),
    (aten.gather.default, lambda: (x(3, 4), 1, k(torch.zeros(2, 2).long()))),
    (INDEX, lambda: (x(3, 4), [_list(2, 1, 0)])),
    (INDEX, lambda: (x(3, 4), [given(torch.rand(3) > 0.5)])),
    (INDEX, lambda: (x(3, 4), [given(torch.tensor([1, 2, 0])), _each(3)])),
    (INDEX, lambda: (x(3, 4), [_column(), given(torch.randint(0, 4, (3, 3)), dim=1)])),
    (PUT, lambda: (x(3, 4), [_list(1, 0, 2)], x(3, 4))),
    (aten.scatter.src, lambda: (x(3, 4), 0, k(torch.zeros(2, 4).long()), x(3, 4))),
    (aten.index_add.default, lambda: (x(3, 4), 0, _list(0, 0, 1), x(3, 4))),
    (aten.slice_scatter.default, lambda: (x(3, 4), w(2, 4), 0, 0, 2)),
])  # fmt: skip
