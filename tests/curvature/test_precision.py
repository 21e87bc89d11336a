"""Models in half precision and autocast: the forward pass is rounded, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from benchmarks.architectures import Transformer
from benchmarks.precision import error, kronecker, predictive, with_adapters

HALF = [torch.bfloat16, torch.float16]


class InForward(nn.Module):
    """A model that enters autocast itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            return self.inner(x).to(dtype)


def cnn() -> nn.Module:
    """No ReLU and no max pooling, where rounding may change a sign or a maximum."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(4, 4, 3, groups=2), nn.SiLU(), nn.Flatten(), nn.Linear(16, 3)),
    )


def image() -> nn.Module:
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 2, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers, nn.Conv2d(2, 1, 3, padding=1), nn.Flatten())


# With the number of ops in a row, each of which rounds.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int]] = {
    "cnn": (cnn, lambda: torch.randn(5, 1, 8, 8), 8),
    "transformer": (
        lambda: Transformer(9, 8, 2, 2, 3),
        lambda: torch.randint(9, (4, 6)),
        30,
    ),
    "windows": (image, lambda: torch.randn(2, 1, 12, 12), 6),
}

Call = Callable[[nn.Module, Any], Mapping[str, Tensor]]


def gradient(model: nn.Module, x: Tensor) -> Mapping[str, Tensor]:
    found = lk.gradient_and_diag(model, (x, torch.zeros(len(x), dtype=torch.long)), "categorical")
    assert {p.dtype for p in model.parameters()} == {v.dtype for v in found.gradient.values()}
    return found.diagonal


CALLS: dict[str, Call] = {
    "exact": lambda m, x: lk.diag(m, x, "categorical"),
    "autograd": lambda m, x: lk.diag(m, x, "categorical", route="autograd"),
    "approx": lambda m, x: lk.diag(m, x, "categorical", "approx"),
    "mixed": lambda m, x: lk.diag(m, x, "categorical", "mixed", threshold=20),
    "gradient": gradient,
    "kron": kronecker,
    "blocks": lambda m, x: lk.blocks(m, x, "categorical", by="neuron"),
    "full": lambda m, x: {"": lk.full(m, x, "categorical").matrix},
    "predictive": predictive,
    "jacobian": lambda m, x: {"": lk.jacobian(m, x)},
}


def made(name: str) -> tuple[nn.Module, Tensor, int]:
    build, inputs, ops = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval(), inputs(), ops


def doubled(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    return copy.deepcopy(model).double(), x.double() if x.is_floating_point() else x


def assert_near(
    found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], tolerance: float
) -> None:
    for name, value in wanted.items():
        assert found[name].dtype == torch.float32
        # Where a gradient is zero up to rounding there is no relative error.
        if float(value.norm()) > 1e-9:
            assert error(found[name], value) <= tolerance, name


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_half_precision(name: str, dtype: torch.dtype, call: str) -> None:
    """Roundings of the forward pass add up at random; squares have twice their error."""
    model, x, ops = made(name)
    model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
    wanted = CALLS[call](*doubled(model, x))
    assert_near(CALLS[call](model, x), wanted, 2 * ops**0.5 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("inside", [False, True])
def test_autocast(name: str, inside: bool) -> None:
    model, x, ops = made(name)
    if inside:
        model = InForward(model)
    wanted = CALLS["exact"](*doubled(model, x))
    for _ in range(2):  # recorded, and once more
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            found = CALLS["exact"](model, x)
        assert_near(found, wanted, 2 * ops**0.5 * torch.finfo(torch.bfloat16).eps)
        assert max(error(found[key], wanted[key]) for key in wanted) > 1e-5  # it was rounded


def test_passes_inside_and_outside_of_autocast_are_kept_apart() -> None:
    model, x, _ = made("cnn")
    plain = [lk.diag(model, x, "categorical") for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = [lk.diag(model, x, "categorical") for _ in range(2)]
    after = lk.diag(model, x, "categorical")
    for name, value in after.items():
        assert torch.equal(value, plain[1][name])
        assert torch.equal(rounded[0][name], rounded[1][name])
    assert any(not torch.equal(rounded[0][name], after[name]) for name in after)


@pytest.mark.parametrize("call", ["exact", "approx", "kron", "predictive"])
def test_adapters_on_a_base_of_half_precision(call: str) -> None:
    torch.manual_seed(0)
    model = with_adapters(nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 4)).bfloat16())
    x = torch.randn(6, 3).bfloat16()
    wanted = CALLS[call](*doubled(model, x))
    assert_near(CALLS[call](model, x), wanted, 2 * 6**0.5 * torch.finfo(torch.bfloat16).eps)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_sums_are_not_rounded(dtype: torch.dtype) -> None:
    """Integers that the type holds, and sums and means of their squares that it does not."""
    model = nn.Linear(3, 2).to(dtype)
    x = torch.randint(-7, 8, (1024, 3)).to(dtype)
    found, wanted = lk.diag(model, x), lk.diag(*doubled(model, x))
    factors, exact = kronecker(model, x, "gaussian"), kronecker(*doubled(model, x), "gaussian")
    for name, value in wanted.items():
        assert torch.equal(found[name].double(), value)
    for name in factors:
        assert torch.equal(factors[name].double(), exact[name])
    assert any(not torch.equal(value, value.to(dtype).double()) for value in wanted.values())


def test_numbers_beyond_float16() -> None:
    """Squares of columns that overflow, and some that vanish, in float16."""
    last = nn.Linear(2, 2)
    model = nn.Sequential(nn.Linear(2, 2), last).half()
    with torch.no_grad():
        last.weight.copy_(torch.tensor([[1000.0, 0.0], [0.0, 1e-4]]))
    x = torch.randn(3, 2).half()
    wanted = lk.diag(*doubled(model, x))
    found = lk.diag(model, x)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].double(), value, rtol=4 * 2**-10, atol=0)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_what_refuses_half_precision(dtype: torch.dtype) -> None:
    model, x, _ = made("cnn")
    model, x, y = model.to(dtype), x.to(dtype), torch.zeros(len(x), dtype=torch.long)
    ones = {name: torch.ones_like(p, dtype=torch.float32) for name, p in model.named_parameters()}
    refused: list[Callable[[], Any]] = [
        lambda: lk.hessian_diag(model, (x, y), "categorical"),
        lambda: lk.low_rank(model, (x, y), 2, "categorical"),
        lambda: lk.ggn_product(model, x, ones, "categorical"),
        lambda: lk.propagated_variance(model, x, ones),
        lambda: lk.Laplace(model, "categorical"),
    ]
    for call in refused:
        with pytest.raises(lk.Refused, match="float16"):
            call()


def test_windows_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    model, x, _ = made("windows")
    lk.diag(model.bfloat16(), x.bfloat16(), explain=True)
    assert "144 windows of 5×5 in 12×12" in capsys.readouterr().out
