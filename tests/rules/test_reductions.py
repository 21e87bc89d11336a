"""Reductions, cumulative sums, orders; softmax and gated units."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lapkernels.rules import MixesSamples
from tests.rules import check
from tests.rules.calls import Arg, Built, Case, aten, case, given, x


def _places(name: str, op: Any, *args: Any, **kwargs: Any) -> list[Case]:
    """Along the last dimension: samples first, second, and merged with others."""
    return [
        *case(name, op, lambda: (x(3, 4), *args), **kwargs),
        *case(f"{name}-second", op, lambda: (x(2, 3, 4, dim=1), *args), **kwargs),
        *case(f"{name}-merged", op, lambda: (x(12, 4, outer=2, inner=2), *args), **kwargs),
    ]


def _ties() -> Arg:
    return given(
        torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0], [1.0, 0.0, 5.0]]).double(), 0, True
    )


CASES: list[Case] = [
    *_places("sum", aten.sum.dim_IntList, [-1]),
    *_places("sum-keep", aten.sum.dim_IntList, [-1], True),
    *case("sum-dims", aten.sum.dim_IntList, lambda: (x(3, 2, 2, 2), [1, 3])),
    *case("sum-first", aten.sum.dim_IntList, lambda: (x(2, 3, 2, dim=1), [0])),
    *case("sum-first-keep", aten.sum.dim_IntList, lambda: (x(2, 3, 2, dim=1), [0], True)),
    *case("amax-first-keep", aten.amax.default, lambda: (x(2, 6, dim=1, inner=2), [0], True)),
    *case("sum-all", aten.sum.default, lambda: (x(1, 3),)),
    *case("mean-all", aten.mean.default, lambda: (x(1, 3),)),
    *_places("mean", aten.mean.dim, [-1]),
    *case("mean-dims", aten.mean.dim, lambda: (x(3, 2, 2, 2), [2, 3], True)),
    *_places("amax", aten.amax.default, [-1]),
    *case("amax-ties", aten.amax.default, lambda: (_ties(), [1])),
    *_places("amin", aten.amin.default, [-1], True),
    *_places("aminmax", aten.aminmax.default, dim=-1),
    *_places("max", aten.max.dim, -1),
    *_places("min", aten.min.dim, -1, True),
    *case("max-all", aten.max.default, lambda: (x(1, 4),)),
    *case("max-of-two", aten.max.other, lambda: (x(3, 4), x(3, 4))),
    *case("min-of-two", aten.min.other, lambda: (x(3, 4), x(3, 4))),
    *_places("logsumexp", aten.logsumexp.default, [-1]),
    *_places("var", aten.var.correction, [-1], correction=1),
    *_places("std", aten.std.correction, [-1], correction=0, keepdim=True),
    *_places("var-mean", aten.var_mean.correction, [-1], correction=1),
    *_places("std-mean", aten.std_mean.correction, [-1], correction=1),
    *_places("vector-norm", aten.linalg_vector_norm.default, 2, [-1]),
    *_places("vector-norm-3", aten.linalg_vector_norm.default, 3, [-1], True),
    *_places("norm", aten.norm.ScalarOpt_dim, 2, [-1]),
    *_places("prod", aten.prod.dim_int, -1),
    *_places("nansum", aten.nansum.default, [-1]),
    *_places("median", aten.median.dim, -1),
    *_places("nanmedian", aten.nanmedian.dim, -1),
    *_places("mode", aten.mode.default, -1),
    *_places("kthvalue", aten.kthvalue.default, 2, -1),
    *_places("cumsum", aten.cumsum.default, -1),
    *_places("cumprod", aten.cumprod.default, -1),
    *_places("logcumsumexp", aten.logcumsumexp.default, -1),
    *_places("cummax", aten.cummax.default, -1),
    *_places("cummin", aten.cummin.default, -1),
    *_places("sort", aten.sort.default, -1, True),
    *_places("sort-stable", aten.sort.stable, stable=True),
    *_places("topk", aten.topk.default, 2),
    *_places("all", aten.all.dim, -1),
    *_places("any", aten.any.dim, -1),
    *_places("argmax", aten.argmax.default, -1),
    *_places("argmin", aten.argmin.default, -1),
    *_places("count-nonzero", aten.count_nonzero.dim_IntList, [-1]),
    *_places("softmax", aten._softmax.default, -1, False),
    *case("softmax-first", aten._softmax.default, lambda: (x(2, 3, dim=1), 0, False)),
    *case("safe-softmax", aten._safe_softmax.default, lambda: (x(2, 3), -1)),
    *_places("log-softmax", aten._log_softmax.default, -1, False),
    *_places("glu", aten.glu.default, -1),
    *case("glu-channels", aten.glu.default, lambda: (x(3, 4, 2), 1)),
    *case("masked-select", aten.masked_select.default, lambda: (x(1, 4), given(_mask())))[1:],
    *case("nonzero", aten.nonzero.default, lambda: (x(1, 4),), diagonal=False)[1:],
]


def _mask() -> torch.Tensor:
    return torch.tensor([[True, False, True, True]])


test_rule = check.each_rule(CASES)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["amax", "sum", "any"])
def test_over_samples_is_refused(name: str, keepdim: bool) -> None:
    op = {"amax": aten.amax.default, "sum": aten.sum.dim_IntList, "any": aten.any.dims}[name]
    (one, _) = case("over", op, lambda: (x(4, 3), [0], keepdim))
    check.refused(one, MixesSamples, "samples")


@pytest.mark.parametrize("op", [aten.cumsum.default, aten.sort.default, aten.cumprod.default])
def test_along_samples_is_refused(op: object) -> None:
    (one, _) = case("along", op, lambda: (x(4, 3), 0))
    check.refused(one, MixesSamples, "samples")


def test_softmax_over_merged_samples_is_refused() -> None:
    (one, _) = case("over", aten._softmax.default, lambda: (x(3, 4, dim=1, inner=2), 1, False))
    check.refused(one, MixesSamples, "samples")


def test_both_results_of_var_mean_have_columns() -> None:
    (one, _) = case("both", aten.var_mean.correction, lambda: (x(3, 4), [1]), correction=1)
    built = Built(one)
    s = [torch.randn(2, 3, dtype=torch.float64) for _ in range(2)]
    leaf = built.args[0].tensor.detach().requires_grad_()
    outs = torch.var_mean(leaf, 1)
    for column in range(2):
        (expected,) = torch.autograd.grad(
            outs, leaf, [part[column] for part in s], retain_graph=True
        )
        (value,) = built.rule.columns(s, [True])
        assert value is not None
        torch.testing.assert_close(value[column], expected)
