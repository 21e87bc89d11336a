"""What is found out about a graph, once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.passes.passes import passes
from lapkernels.curvature.recording.graph import Graph, once_per_graph
from lapkernels.ops.serving import forced


def test_passes_that_repeat_another_find_nothing_anew() -> None:
    calls: list[int] = []

    @once_per_graph
    def find(graph: Graph, number: int) -> int:
        calls.append(number)
        return number + len(graph.sample_nodes)

    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)

    def found(x: Tensor, *numbers: int) -> list[int]:
        (one,) = passes(model, x)[1]
        return [find(one.graph, number) for number in numbers]

    for _ in range(3):
        assert found(x, 1, 2, 1) == [4, 5, 4]
    assert calls == [1, 2]
    found(x[:2], 1)
    assert calls == [1, 2, 1]
    with forced(scaled=True):
        found(x, 1, 1)
    found(x, 1)
    assert calls == [1, 2, 1, 1]


def test_factors_have_shares_of_their_own() -> None:
    """Tied weights stand alone for factors, and not for a diagonal: both from one graph."""
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer).double()
    x = torch.randn(6, 3, dtype=torch.float64)

    def both() -> list[Tensor]:
        factors = lk.kron(model, x, method="exact")
        diagonal = lk.diag(model, x, method="exact")
        return [factors.dense("0.weight"), diagonal["0.weight"]]

    first = both()
    for one, other in zip(both(), first, strict=True):
        assert other.any()
        torch.testing.assert_close(one, other)
    dense = lk.full(model, x).matrix.diagonal()[:9].reshape(3, 3)
    torch.testing.assert_close(first[1], dense)
