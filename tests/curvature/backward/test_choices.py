"""All ways give the same numbers: each is forced, and compared with the Jacobian."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

import lapkernels as lk
from lapkernels.kernels import NATIVE
from lapkernels.ops.serving import forced
from tests.curvature import oracle
from tests.curvature.backward.networks import NETWORKS, dense

KINDS = ("compressed", "windows", "scaled", "sparse")


BUILT = ("unflattened", "tokens", "pooled", "autoencoder", "sparse")


@pytest.mark.parametrize("network", BUILT)
def test_every_choice_gives_the_exact_diagonal(network: str) -> None:
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    model, x = build().double(), torch.randn(shape, dtype=torch.float64)
    jacobians, _ = oracle.jacobians(model, x)
    expected = {name: j.square().sum((0, 1)) for name, j in jacobians.items()}
    alone = [{kind: wanted} for kind in KINDS for wanted in (True, False)]
    together = [dict.fromkeys(KINDS, wanted) for wanted in (True, False)]
    for choices, budget in [*product([*alone, *together], [None]), (together[0], 1)]:
        with forced(**choices):
            found = lk.diag(model, x, memory_budget=budget)
        for name, value in expected.items():
            message = f"{name} with {choices}, memory_budget={budget}"
            torch.testing.assert_close(
                found[name], value, rtol=1e-10, atol=1e-13, msg=lambda m, k=message: f"{k}: {m}"
            )


@pytest.mark.parametrize("network", BUILT)
def test_every_choice_gives_the_same_kronecker_factors(network: str) -> None:
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    model, x = build().double(), torch.randn(shape, dtype=torch.float64)
    with forced(**dict.fromkeys(KINDS, False)):
        expected = lk.kron(model, x, method="exact")
    for kind in KINDS:
        with forced(**{kind: True}):
            found = lk.kron(model, x, method="exact")
        for name in expected:
            torch.testing.assert_close(
                found.dense(name), expected.dense(name), rtol=1e-10, atol=1e-12
            )


def test_an_unknown_choice_raises() -> None:
    with pytest.raises(ValueError, match="fastest"), forced(fastest=True):
        pass


def test_the_table_names_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    lk.diag(nn.Sequential(*dense(64, 32, 2, 32, 64)), torch.randn(8, 64), explain=True)
    table = capsys.readouterr().out
    assert "64 columns for all samples" in table and "shared" in table
    assert "64 columns to 2" in table and "compressed" in table


def test_the_table_says_who_pulls_columns_through_convolutions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layers = (nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 1), nn.Flatten())
    model, x = nn.Sequential(*layers, nn.Linear(50, 9)), torch.randn(2, 1, 9, 9)
    lk.diag(model, x, explain=True)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "columns by torch" in lines["2"]
    assert ("columns by a kernel" if NATIVE.path else "columns by torch") in lines["1"]
