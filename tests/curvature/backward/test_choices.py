"""All ways give the same numbers: each is forced, and compared with the Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.kernels import NATIVE
from lapkernels.ops.serving import forced
from tests.curvature import oracle

KINDS = ("compressed", "windows", "scaled", "sparse")


class Tokens(nn.Module):
    """A layer at three positions, with more columns than positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.reshape(-1, 3, 4)).relu())


def dense(*widths: int) -> nn.Sequential:
    pairs = zip(widths, widths[1:], strict=False)
    layers = chain.from_iterable((nn.Linear(a, b), nn.Tanh()) for a, b in pairs)
    return nn.Sequential(*list(layers)[:-1])


def images() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 2, 3, padding=1), nn.ReLU()),
        *(nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 3, padding=1)),
    )


def bottleneck() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2), nn.Tanh()),
        *(nn.Linear(2, 9), nn.Unflatten(1, (1, 3, 3)), nn.Conv2d(1, 4, 2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16, 20)),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: dense(12, 9, 2, 9, 12, 12), (3, 12)),
    "tokens": (Tokens, (3, 12)),
    "images": (images, (2, 1, 6, 4)),
    "bottleneck": (bottleneck, (3, 1, 7, 7)),
}


@pytest.mark.parametrize("network", NETWORKS)
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


@pytest.mark.parametrize("network", NETWORKS)
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
    lk.diag(dense(64, 32, 2, 32, 64), torch.randn(8, 64), explain=True)
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
