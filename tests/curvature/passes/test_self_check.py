"""A recorded pass is compared with autograd before it is used, once for each program."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lapkernels as lk
from lapkernels.curvature.passes import self_check
from lapkernels.rules.activations import Tanh
from tests.curvature import oracle
from tests.curvature.zoo.network import Net


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[self_check.Verdict]:
    """What was found, for every comparison that is made."""
    found: list[self_check.Verdict] = []
    real = self_check._Check.verdict

    def noted(check: Any) -> self_check.Verdict:
        found.append(real(check))
        return found[-1]

    monkeypatch.setattr(self_check._Check, "verdict", noted)
    return found


def model_with(middle: Any, **owned: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = Net(lambda net, x: net.last(middle(net, net.first(x))), **owned)
    model.first, model.last = nn.Linear(3, 4), nn.Linear(4, 2)
    return model.double(), torch.randn(5, 3, dtype=torch.float64)


def squares(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    j, _ = oracle.jacobians(model, x)
    return {name: rows.square().sum((0, 1)) for name, rows in j.items()}


def assert_equal(found: Any, known: dict[str, Tensor]) -> None:
    for name, value in known.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)


@pytest.fixture
def wrong_rule(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Tensor]:
    """A network behind a tanh whose rule doubles columns."""
    real = Tanh.columns
    monkeypatch.setattr(Tanh, "columns", lambda rule, s, wanted: real(rule, [2 * s[0]], wanted))
    monkeypatch.setattr(Tanh, "overwrite", lambda rule, s: real(rule, [2 * s], [True])[0])
    return model_with(lambda net, x: x.tanh())


def test_a_wrong_rule_is_not_used(
    wrong_rule: tuple[nn.Module, Tensor], checks: list[self_check.Verdict]
) -> None:
    model, x = wrong_rule
    assert_equal(lk.diag(model, x), squares(model, x))
    assert [one.problem for one in checks] == [
        "the gradient of first.weight, first.bias is not autograd's",
        None,
    ]


def test_a_wrong_rule_is_refused_where_nothing_else_would_do(
    wrong_rule: tuple[nn.Module, Tensor],
) -> None:
    model, x = wrong_rule
    with pytest.raises(lk.Refused, match="first.weight, first.bias.*route='auto'"):
        lk.diag(model, x, route="rules")
    with pytest.raises(lk.Refused, match="first.weight, first.bias.*no diagonal can be passed"):
        lk.diag(model, x, method="approx")
    ones = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    with pytest.raises(lk.Refused, match="no variance can be passed"):
        lk.propagated_variance(model, x, ones)


def test_it_can_be_switched_off(
    wrong_rule: tuple[nn.Module, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    model, x = wrong_rule
    with lk.unchecked():
        found = lk.diag(model, x, explain=True)
    assert "switched off" in capsys.readouterr().out
    known = squares(model, x)
    torch.testing.assert_close(found["first.weight"], 4 * known["first.weight"])
    assert_equal(lk.diag(model, x), known)


def test_a_wrong_gradient_of_autograds_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Difference quotients know better."""
    real = self_check._Check._by_autograd

    def wrong(check: Any) -> tuple[Tensor, dict[str, Tensor]]:
        f, gradients = real(check)
        return f, {name: 2 * g if "first" in name else g for name, g in gradients.items()}

    monkeypatch.setattr(self_check._Check, "_by_autograd", wrong)
    model, x = model_with(lambda net, x: x.tanh())
    with pytest.warns(RuntimeWarning, match="first.weight, first.bias is not the derivative"):
        found = lk.diag(model, x)
    assert_equal(found, squares(model, x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lk.diag(model, x)


class CountedBackward(torch.autograd.Function):
    """A gradient that is another one each time."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        CountedBackward.calls += 1
        return CountedBackward.calls * grads[0]


@pytest.mark.filterwarnings("ignore:.*Samples run one at a time:RuntimeWarning")
def test_a_gradient_that_nothing_agrees_with_is_refused() -> None:
    model, x = model_with(lambda net, x: CountedBackward.apply(x))
    for batch in (x, x[:1]):
        with pytest.raises(lk.Refused, match="first.weight, first.bias is not autograd's"):
            lk.diag(model, batch)


def test_each_program_is_checked_once(checks: list[self_check.Verdict]) -> None:
    """Other shapes are the same program; other parameters, ops or routes are not."""
    model, _ = model_with(lambda net, x: x.tanh() if net.training else x.relu())
    model.train()
    for count in (5, 3, 4, 5):
        lk.diag(model, torch.randn(count, 3, dtype=torch.float64))
    x = torch.randn(6, 7, 3, dtype=torch.float64)
    assert len(checks) == 1
    lk.diag(model, x)
    lk.diag(model, x[:, :4], method="mc")
    assert len(checks) <= 2
    count = len(checks)
    for more, change in enumerate(
        (
            lambda: lk.diag(model, x, params="last"),
            lambda: lk.diag(model, x, route="autograd"),
            lambda: lk.diag(model.eval(), x),
        ),
        1,
    ):
        change()
        change()
        assert len(checks) == count + more
    assert not any(one.problem for one in checks)


def test_outputs_that_see_the_whole_batch_are_refused() -> None:
    """Numbers leave torch here, so that no op shows it."""
    model, x = model_with(lambda net, x: x * float(x.detach().numpy().max()))
    with pytest.raises(lk.Refused, match="changes with the other samples"):
        lk.diag(model, x)


@pytest.mark.parametrize("count", [2, 3])
def test_outputs_that_use_a_number_of_the_whole_batch_are_refused(count: int) -> None:
    """Also where the check itself is of the whole batch, and where it is switched off."""
    model, x = model_with(lambda net, h: h.tanh())
    model = Net(lambda net, x: net.model(x / x.abs().amax()), model=model)
    with pytest.raises(lk.Refused, match="changes with the other samples"):
        lk.diag(model, x[:count])
    with lk.unchecked(), pytest.raises(lk.Refused, match="changes with the other samples"):
        lk.diag(model, x[:count])


def test_what_autograd_cannot_do_is_refused() -> None:
    """Checkpoints of the older kind allow no gradient of chosen tensors."""

    def middle(net: Net, x: Tensor) -> Tensor:
        return checkpoint(torch.tanh, x, use_reentrant=True)  # pyright: ignore[reportReturnType]

    model, x = model_with(middle)
    with pytest.raises(lk.Refused, match="autograd finds no gradient.*use_reentrant=False"):
        lk.diag(model, x)


def test_frozen_parameters_are_checked(checks: list[self_check.Verdict]) -> None:
    model, x = model_with(lambda net, x: x.tanh())
    model.requires_grad_(False)
    found = lk.diag(model, x, params=["first", "last.bias"])
    model.requires_grad_()
    known = squares(model, x)
    assert_equal(found, {name: known[name] for name in found})
    assert [one.note for one in checks] == ["gradients of samples 0 and 1 agree with autograd"]


def test_ties_of_pooling_agree(checks: list[self_check.Verdict]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model.append(nn.Linear(2 * 64, 2))
    x = torch.randint(0, 2, (4, 1, 16, 16)).float()
    lk.diag(model, x)
    assert [one.problem for one in checks] == [None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_of_zero_is_left_to_rounding(
    dtype: torch.dtype, checks: list[self_check.Verdict]
) -> None:
    """That of a bias before a norm."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(1, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    ).to(dtype)
    model[0].bias = nn.Parameter(100 * torch.ones(8, dtype=dtype))
    lk.diag(model, torch.randn(4, 3, 8, 8, dtype=dtype))
    assert [one.problem for one in checks] == [None]
