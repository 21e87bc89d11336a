"""Layers with the activations behind them run as one, where nobody else needs what is between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels import use_backend
from lapkernels.curvature.recording import replay
from lapkernels.curvature.recording.fusion import Run
from lapkernels.kernels import NATIVE

pytestmark = pytest.mark.skipif(NATIVE.path is None, reason=f"no compiled library: {NATIVE.reason}")

# Large enough for our kernels to be the faster ones.
WIDE = 512


def mlp(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(WIDE, WIDE), activation, nn.Linear(WIDE, WIDE), activation),
        *(nn.Linear(WIDE, 3), nn.Dropout(), activation, nn.Linear(3, 4)),
    )


def convs(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3, padding=1), activation, nn.ConvTranspose2d(3, 2, 3, bias=False)),
        *(activation, nn.Conv2d(2, 2, 3, groups=2)),
    )


def runs_of(model: nn.Module) -> list[list[str]]:
    """The functions of each run in the model's template, or of a call alone."""
    (templates,) = replay._free[model].values()
    runs = next(one.runs for one in templates if one.runs is not None)
    return [
        [step.function.name.removeprefix("aten::") for step in one.steps]
        for one in runs
        if isinstance(one, Run)
    ]


def diagonals(model: nn.Module, x: Tensor) -> list[Tensor]:
    found: list[Tensor] = []
    for method in ("exact", "approx"):
        found += lk.diag(model, x, "gaussian", method, output=None).values()
    both = lk.gradient_and_diag(model, (x, torch.zeros_like(model(x))), "gaussian")
    return [*found, *both.gradient.values(), *both.diagonal.values()]


CASES: dict[str, tuple[nn.Module, tuple[int, ...], list[list[str]]]] = {
    "tanh": (mlp(nn.Tanh()), (9, WIDE), [["linear", "tanh", "linear", "tanh"]]),
    "relu": (mlp(nn.ReLU()), (9, WIDE), [["linear", "relu", "linear", "relu"]]),
    # Its derivative is read from its operand.
    "gelu": (mlp(nn.GELU()), (9, WIDE), [["linear"], ["linear"]]),
    "many rows": (mlp(nn.ReLU()), (40, WIDE), []),
    "convolutions": (
        convs(nn.ReLU()),
        (3, 2, 40, 41),
        # The last makes too few products.
        [["convolution", "relu", "convolution", "relu"]],
    ),
    "many channels": (nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU()), (2, 64, 9, 9), []),
}


@pytest.mark.parametrize("name", CASES)
def test_later_passes_give_the_same_bits(name: str) -> None:
    model, shape, runs = CASES[name]
    model = model.eval()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    first = diagonals(model, x)
    for _ in range(2):
        diagonals(model, x.flip(0))
        for one, known in zip(diagonals(model, x), first, strict=True):
            assert torch.equal(one, known)
    assert runs_of(model) == runs


def test_what_others_read_is_made() -> None:
    """The result of a layer that is also the model's output, or read twice, stays what it is."""
    last = nn.Sequential(nn.Linear(WIDE, WIDE)).eval()
    x = torch.randn(3, WIDE)
    every = [lk.diag(last, x, "gaussian", "approx") for _ in range(4)]
    assert runs_of(last) == [["linear"]]
    torch.testing.assert_close(every[-1]["0.weight"], x.square().sum(0).expand(WIDE, WIDE))


def test_without_the_kernel_calls_are_made_one_by_one() -> None:
    model = mlp(nn.ReLU()).eval()
    x = torch.randn(3, WIDE, generator=torch.Generator().manual_seed(0))
    known: Any = None
    for _ in range(4):
        known = lk.diag(model, x, "gaussian", "approx")
    assert runs_of(model)
    with use_backend("reference"):
        found = lk.diag(model, x, "gaussian", "approx")
    for name, value in known.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
