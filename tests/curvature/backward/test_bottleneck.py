"""Rank compression: fewer columns behind bottlenecks, and the same curvature."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.backward.carry import compress
from lapkernels.curvature.backward.cost import Load, cuts
from lapkernels.curvature.backward.planner import plan_columns
from lapkernels.curvature.passes.passes import passes
from lapkernels.ops.serving import forced
from tests.curvature import oracle


def expected_of(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    jacobians, _ = oracle.jacobians(model, x)
    return {name: j.square().sum((0, 1)) for name, j in jacobians.items()}


def autoencoder(*widths: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1]).double()


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("choices", [{"compressed": True}, {}, {"compressed": False}])
def test_compression_keeps_the_diagonal(
    activation: type[nn.Module], choices: dict[str, bool]
) -> None:
    model = autoencoder(9, 6, 2, 6, 9, activation=activation)
    x = torch.randn(4, 9, dtype=torch.float64)
    with forced(**choices):
        diagonal = lk.diag(model, x)
    for name, value in expected_of(model, x).items():
        torch.testing.assert_close(diagonal[name], value, rtol=1e-10, atol=1e-14)


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
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(20, 2), nn.Linear(2, 20)
            self.stem, self.head = nn.Linear(20, 20), nn.Linear(20, 20)

        def forward(self, x: Tensor) -> Tensor:
            h = self.stem(x).tanh()
            return self.head(h + self.decoder(self.encoder(h).tanh()))

    torch.manual_seed(0)
    model, x = Skip().double(), torch.randn(3, 20, dtype=torch.float64)
    assert 2 not in cuts_of(model, x, 20)
    diagonal = lk.diag(model, x)
    for name, value in expected_of(model, x).items():
        torch.testing.assert_close(diagonal[name], value, rtol=1e-10, atol=1e-14)


def test_a_layer_used_on_both_sides_of_a_bottleneck_forbids_the_cut() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.narrow, self.wide = nn.Linear(8, 2), nn.Linear(2, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.wide(self.narrow(self.layer(x).tanh())).tanh())

    torch.manual_seed(0)
    model, x = Tied().double(), torch.randn(3, 8, dtype=torch.float64)
    with forced(compressed=True):
        assert cuts_of(model, x, 8) == []
        diagonal = lk.diag(model, x)
    for name, value in expected_of(model, x).items():
        torch.testing.assert_close(diagonal[name], value, rtol=1e-10, atol=1e-14)


def test_rank_deficient_columns_in_single_precision() -> None:
    # Half of the units are dead and two rows of the decoder are equal up to rounding.
    torch.manual_seed(0)
    model = autoencoder(40, 16, 4, 16, 40, activation=nn.ReLU)
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
