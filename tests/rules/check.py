"""What every rule must give, compared with the dense Jacobian of its op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from lapkernels.ops.base import chunks
from lapkernels.rules import MixesSamples, Samples, Use
from tests.rules.calls import Arg, Built, Case, case, params

V = 3
Make = Callable[[], Sequence[Any]]
__all__ = ["Arg", "Make", "Samples", "close", "refused", "rule"]


def close(value: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def rule(case: Case, generic: bool = False) -> None:
    """Samples, columns, diagonal and uses."""
    torch.manual_seed(0)
    built = Built(case, generic)
    samples(built)
    if not built.rule.differentiable:
        return
    for index, arg in enumerate(built.args):
        if arg.active and arg.samples is not None:
            columns(built, index)
        elif arg.active:
            use(built, index)
    if case.diagonal:
        diagonal(built)


def each_rule(cases: Sequence[Case], generic: bool = False) -> Callable[..., None]:
    """A test of every case."""

    @pytest.mark.parametrize("one", params(cases))
    def test(one: Case) -> None:
        rule(one, generic)

    return test


def each_refused(calls: Sequence[tuple[object, Make]]) -> Callable[..., None]:
    """A test that ops across samples, with these arguments, are refused."""

    @pytest.mark.parametrize(("op", "args"), calls)
    def test(op: object, args: Make) -> None:
        (one, _) = case("across", op, args)
        refused(one, MixesSamples, "sample")

    return test


def samples(built: Built) -> None:
    """An entry of the result depends on entries of its own sample only."""
    assert len(built.rule.samples) == len(built.outputs)
    where, out = built.rule.samples[0], built.outputs[0]
    assert where is not None
    assert where.outer * where.count * where.inner == (out.shape[where.dim] if out.dim() else 1)
    if not built.rule.differentiable:
        return
    own = built.labels(where, out.shape).flatten()
    for index, arg in enumerate(built.args):
        if arg.samples is None or not arg.tensor.is_floating_point():
            continue
        try:
            j = built.jacobian(index).reshape(out.numel(), -1)
        except RuntimeError:
            assert not arg.active
            continue
        of = built.labels(arg.samples, arg.tensor.shape).flatten()
        assert not j[own.unsqueeze(1) != of].any()


def columns(built: Built, index: int) -> None:
    wanted = [i == index for i in range(len(built.args))]
    out = built.outputs[0]
    s = torch.randn(V, *out.shape, dtype=torch.float64)
    found = built.rule.columns([s, *[None] * (len(built.outputs) - 1)], wanted)
    assert len(found) == len(built.args)
    value = found[index]
    assert value is not None
    expected = torch.tensordot(s, built.jacobian(index), out.dim())
    close(value, expected)
    assert all(other is None for i, other in enumerate(found) if i != index)


def diagonal(built: Built) -> None:
    wanted = [arg.active and arg.samples is not None for arg in built.args]
    if not any(wanted):
        return
    out = built.outputs[0]
    m = torch.randn(out.shape, dtype=torch.float64)
    found = built.rule.diagonal([m, *[None] * (len(built.outputs) - 1)], wanted)
    for group in built.same:
        if not wanted[group[0]]:
            continue
        j = torch.stack([built.jacobian(index) for index in group]).sum(0)
        expected = torch.tensordot(m, j.square(), out.dim())
        value = sum(one for i in group if (one := found[i]) is not None)
        assert isinstance(value, Tensor)
        close(value, expected)


def use(built: Built, index: int) -> None:
    """Every sum over the Jacobian of a weight."""
    entry: Use = built.rule.uses[index]
    out, weight = built.outputs[0], built.args[index].tensor
    where = built.rule.samples[0]
    assert where is not None and entry.shape == weight.shape and entry.count == built.count
    own = built.labels(where, out.shape)
    j = built.jacobian(index)
    s = torch.randn(V, *out.shape, dtype=torch.float64)
    g = torch.stack([torch.tensordot(s * (own == n), j, out.dim()) for n in range(built.count)], 1)
    close(entry.jacobian(s), g)
    rows = slice(built.count // 2, built.count)
    close(entry.jacobian(s, rows), g[:, rows])
    variance = torch.rand(weight.shape, dtype=torch.float64)
    flat = g.flatten(2).transpose(0, 1)
    gram = (flat * variance.flatten()) @ flat.mT
    for chunk in (chunks.CHUNK, 2 * weight.numel()):
        with patch.object(chunks, "CHUNK", chunk):
            close(entry.squared_sum(s), g.square().sum((0, 1)))
            close(entry.gram(s, variance), gram)
            close(entry.squared_dot(s, variance), gram.diagonal(dim1=1, dim2=2))
    m = torch.randn(out.shape, dtype=torch.float64)
    close(entry.squared(m), torch.tensordot(m, j.square(), out.dim()))


def refused(case: Case, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Built(case)
