"""Rank compression: fewer columns behind bottlenecks, and the same curvature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.backward.carry import compress
from lapkernels.curvature.backward.cost import Load, cuts
from lapkernels.curvature.backward.planner import plan_columns
from lapkernels.curvature.passes.passes import passes
from lapkernels.ops.serving import forced
from tests.curvature import check, oracle
from tests.curvature.backward.networks import dense
from tests.curvature.zoo.network import Net


def expected_of(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    jacobians, _ = oracle.jacobians(model, x)
    return {name: j.square().sum((0, 1)) for name, j in jacobians.items()}


def autoencoder(*widths: int) -> nn.Sequential:
    return nn.Sequential(*dense(*widths)).double()


def cuts_of(model: nn.Module, x: Tensor, count: int) -> list[int]:
    _, batches = passes(model, x)
    (one,) = batches
    stages = plan_columns(one.graph, Load(count, 1 << 24, compress=True)).stages
    return [stage.section.exit.shape[1] for stage in stages if stage.section.exit is not None]


def test_the_narrowest_value_is_cut() -> None:
    model = autoencoder(64, 32, 2, 32, 64)
    x = torch.randn(3, 64, dtype=torch.float64)
    assert cuts_of(model, x, 64) == [2]
    assert cuts_of(model, x, 2) == []


def test_a_skip_around_the_bottleneck_leaves_nothing_to_cut_there() -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        h = net.stem(x).tanh()
        return net.head(h + net.decoder(net.encoder(h).tanh()))

    layers = {"encoder": nn.Linear(20, 2), "decoder": nn.Linear(2, 20)}
    model = Net(run, **layers, stem=nn.Linear(20, 20), head=nn.Linear(20, 20)).double()
    x = torch.randn(3, 20, dtype=torch.float64)
    assert 2 not in cuts_of(model, x, 20)
    diagonal = lk.diag(model, x)
    check.assert_close(diagonal, expected_of(model, x))


def test_a_layer_used_on_both_sides_of_a_bottleneck_forbids_the_cut() -> None:
    model = Net(
        lambda net, x: net.layer(net.wide(net.narrow(net.layer(x).tanh())).tanh()),
        **{"layer": nn.Linear(8, 8), "narrow": nn.Linear(8, 2), "wide": nn.Linear(2, 8)},
    ).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    with forced(compressed=True):
        assert cuts_of(model, x, 8) == []
        diagonal = lk.diag(model, x)
    check.assert_close(diagonal, expected_of(model, x))


def test_rank_deficient_columns_in_single_precision() -> None:
    # Half of the units are dead and two rows of the decoder are equal up to rounding.
    model = nn.Sequential(*dense(40, 16, 4, 16, 40, activation=nn.ReLU)).double()
    with torch.no_grad():
        for layer in (model[0], model[4]):
            assert isinstance(layer, nn.Linear)
            layer.bias[::2] = -100.0
        last = model[6]
        assert isinstance(last, nn.Linear)
        last.weight[1] = last.weight[0] * (1 + 1e-7)
    x = torch.randn(3, 40, dtype=torch.float64)
    expected = expected_of(model, x)
    diagonal = lk.diag(model.float(), x.float())
    for name, value in expected.items():
        assert torch.isfinite(diagonal[name]).all()
        error = (diagonal[name].double() - value).abs().max()
        assert error <= 1e-5 * value.abs().max(), name


def test_columns_have_the_second_moment_of_what_they_replace() -> None:
    model = autoencoder(6, 3, 6)
    x = torch.randn(2, 6, dtype=torch.float64)
    _, batches = passes(model, x)
    (one,) = batches
    (cut, *_) = cuts(one.graph)
    columns = torch.randn(11, *cut.value.shape, dtype=torch.float64)
    parts = compress(columns[7:], compress(columns[:7], None, cut.value), cut.value)
    assert parts.shape[0] == cut.value.shape[1]
    moment = torch.einsum("vnd,vne->nde", columns, columns)
    torch.testing.assert_close(torch.einsum("vnd,vne->nde", parts, parts), moment)
