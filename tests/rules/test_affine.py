"""Matrix products, convolutions and embeddings, with weights on either side."""

from __future__ import annotations

import pytest
import torch

from lapkernels.rules import Call, Kept, MixesSamples, Operand, builder_of
from tests.rules import check
from tests.rules.calls import Arg, Case, aten, case, given, w, x

MM, BMM, ADDMM, BADDBMM = (
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
)
CONV = aten.convolution.default


def _tokens(*shape: int, rows: int = 4) -> Arg:
    return given(torch.randint(0, rows, shape))


def _flat_tokens() -> Arg:
    return Arg(torch.randint(0, 4, (6,)), check.Samples(3, 0, 1, 2), False)


def _constant(*shape: int) -> Arg:
    return Arg(torch.randn(shape, dtype=torch.float64), None, False)


def _geometry(
    spatial: int, transposed: bool = False, groups: int = 1, stride: int = 1, padding: int = 0
) -> tuple[object, ...]:
    return (
        *([stride] * spatial, [padding] * spatial, [1] * spatial),
        *(transposed, [0] * spatial, groups),
    )


TWO_DIMS = _geometry(2)
CASES: list[Case] = [
    *case("mm", MM, lambda: (x(3, 4), w(4, 2))),
    *case("mm-merged", MM, lambda: (x(12, 4, outer=2, inner=2), w(4, 2))),
    *case("mm-weight-first", MM, lambda: (w(2, 4), x(4, 3, dim=1))),
    *case("mm-weight-first-merged", MM, lambda: (w(2, 4), x(4, 6, dim=1, inner=2))),
    *case("mm-both", MM, lambda: (x(3, 4), x(4, 2)))[1:],
    *case("mm-constant", MM, lambda: (x(3, 4), _constant(4, 2))),
    *case("addmm", ADDMM, lambda: (w(2), x(3, 4), w(4, 2))),
    *case("addmm-samples-added", ADDMM, lambda: (x(3, 2), x(3, 4), w(4, 2))),
    *case("linear", aten.linear.default, lambda: (x(3, 4), w(2, 4), w(2))),
    *case("linear-of-positions", aten.linear.default, lambda: (x(3, 5, 4), w(2, 4), None)),
    *case("addmm-scaled", ADDMM, lambda: (w(2), x(3, 4), w(4, 2)), alpha=0.5, beta=2),
    *case("mv", aten.mv.default, lambda: (x(3, 4), w(4))),
    *case("mv-merged", aten.mv.default, lambda: (x(6, 4, inner=2), w(4))),
    *case("bmm", BMM, lambda: (x(3, 2, 4), x(3, 4, 2))),
    *case("bmm-merged", BMM, lambda: (x(6, 2, 4, inner=2), x(6, 4, 2, inner=2))),
    *case("bmm-one-weight", BMM, lambda: (x(1, 3, 4, dim=1), w(1, 4, 2))),
    *case("bmm-weights", BMM, lambda: (x(2, 3, 4, dim=1), w(2, 4, 2))),
    *case("bmm-weights-merged", BMM, lambda: (x(2, 6, 4, dim=1, inner=2), w(2, 4, 2))),
    *case("bmm-weights-first", BMM, lambda: (w(2, 5, 4), x(2, 4, 3, dim=2))),
    *case("bmm-weight-of-each", BMM, lambda: (w(6, 2, 4), x(6, 4, 2, inner=2))),
    *case("bmm-weight-of-each-second", BMM, lambda: (x(6, 2, 4, outer=2), w(6, 4, 2))),
    *case("bmm-twice", BMM, lambda: [x(3, 2, 2)] * 2),
    *case("baddbmm", BADDBMM, lambda: (w(2, 5), x(3, 2, 4), x(3, 4, 5))),
    *case("baddbmm-samples-added", BADDBMM, lambda: (x(3, 2, 5), x(3, 2, 4), x(3, 4, 5))),
    *case("conv1", CONV, lambda: (x(3, 2, 5), w(3, 2, 2), w(3), *_geometry(1))),
    *case("conv2", CONV, lambda: (x(3, 2, 4, 3), w(4, 1, 2, 2), None, *_geometry(2, groups=2))),
    *case("conv2-merged", CONV,
        lambda: (x(6, 2, 3, 3, inner=2), w(3, 2, 2, 2), w(3), *_geometry(2))),
    *case("conv2-one-number", CONV, lambda: (x(3, 1, 3, 3), w(2, 1, 2, 2), None, *_geometry(1))),
    *case("conv2-transposed", CONV,
        lambda: (x(3, 2, 3, 3), w(2, 3, 2, 2), w(3), *_geometry(2, True, stride=2, padding=1))),
    *case("conv3", CONV, lambda: (x(3, 1, 2, 3, 3), w(2, 1, 2, 2, 1), w(2), *_geometry(3))),
    *case("embedding", aten.embedding.default, lambda: (w(4, 3), _tokens(3, 2))),
    *case("embedding-padding", aten.embedding.default, lambda: (w(4, 3), _tokens(3, 4), 1)),
    *case("embedding-merged", aten.embedding.default, lambda: (w(4, 3), _flat_tokens())),
]  # fmt: skip


test_rule = check.each_rule(CASES)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (MM, lambda: (x(3, 4), x(4, 3, dim=1))),
        (MM, lambda: (x(4, 3, dim=1), w(3, 2))),
        (BMM, lambda: (x(2, 3, 4, dim=1), x(2, 4, 3, dim=2))),
        (BMM, lambda: (x(2, 4, 3, dim=2), w(2, 3, 4))),
        (CONV, lambda: (x(2, 3, 4, dim=1), w(2, 3, 2), None, *_geometry(1))),
    ],
    ids=["gram", "sum", "gram-batched", "sum-batched", "conv"],
)
def test_over_samples_is_refused(op: object, args: check.Make) -> None:
    (one, _) = case("over", op, args)
    check.refused(one, MixesSamples, "sample")


def test_scaling_by_frequency_is_refused() -> None:
    for one in case(
        "frequency", aten.embedding.default, lambda: (w(4, 3), _tokens(3, 2), -1, True)
    ):
        check.refused(one, MixesSamples, "scale_grad_by_freq")


def test_an_embedding_of_the_same_indices_for_all_samples() -> None:
    """A weight made of a parameter: columns go on to the parameter."""
    op, index = aten.embedding.default, torch.tensor([[1, 3], [1, 0]])
    weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    out = op(weight, index, 1)
    operands = [Operand(weight.detach(), None, True, Kept), Operand(index, None, False, Kept)]
    call = Call("aten::embedding", op, operands, (out,), Kept, 3, [[0], [1]])
    builder = builder_of("aten::embedding")
    assert builder is not None
    rule = builder(call, *operands, 1)
    assert rule.samples == (None,) and not rule.uses
    s = torch.randn(2, *out.shape, dtype=torch.float64)
    found = rule.columns([s], [True, False])[0]
    assert found is not None
    for column, value in zip(s, found, strict=True):
        (expected,) = torch.autograd.grad(out, weight, column, retain_graph=True)
        check.close(value, expected)
