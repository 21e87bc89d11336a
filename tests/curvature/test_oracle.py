"""The oracle against hand calculation, torch.func and cases where an approximation is exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.func import hessian as func_hessian

from tests.curvature import kron_oracle, op_oracle, oracle
from tests.curvature.op_recording import recorded
from tests.curvature.zoo import ZOO, Net


def small() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 2)).double()
    return model, torch.randn(3, 2, 4, dtype=torch.float64)


def named(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def flat_function(
    model: nn.Module, x: Tensor, y: Tensor, likelihood: str
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The summed loss as a function of all parameters in one vector."""
    own = named(model)

    def loss(vector: Tensor) -> Tensor:
        parts = vector.split([p.numel() for p in own.values()])
        shaped = {name: v.reshape(own[name].shape) for name, v in zip(own, parts, strict=True)}
        return oracle.LIKELIHOODS[likelihood](functional_call(model, shaped, (x,)), y)

    return loss, torch.cat([p.reshape(-1) for p in own.values()])


def test_ggn_by_hand() -> None:
    # f = w x + b on x = 2 and x = 3: J = (x, 1).
    model = nn.Linear(1, 1)
    x = torch.tensor([[2.0], [3.0]])
    wanted = torch.tensor([[13.0, 5.0], [5.0, 2.0]], dtype=torch.float64)
    assert oracle.ggn(model, x, torch.zeros(2, 1)).equal(wanted)
    assert oracle.diag(wanted, model)["weight"].equal(wanted[:1, :1])
    assert oracle.block(wanted, model, "weight", "bias").equal(wanted[:1, 1:])


def test_empirical_by_hand() -> None:
    # Residuals are f - y = 2 w + b - y: 1 and -2; gradients (2, 1) and (-6, -2).
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    x, y = torch.tensor([[2.0], [3.0]]), torch.tensor([[1.0], [5.0]])
    wanted = torch.tensor([[40.0, 14.0], [14.0, 5.0]], dtype=torch.float64)
    assert oracle.empirical(model, x, y).equal(wanted)


def test_jacobians_are_those_of_torch_func() -> None:
    model, x = small()
    found, f = oracle.jacobians(model, x)
    torch.testing.assert_close(f, model(x).detach())
    wanted = jacrev(lambda p: functional_call(model, p, (x,)))(named(model))
    assert list(found) == list(wanted)
    for name, j in found.items():
        torch.testing.assert_close(j, wanted[name])


def test_jacobians_add_the_uses_of_a_tied_parameter() -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, second).double()
    x = torch.randn(1, 2, dtype=torch.float64)
    found, _ = oracle.jacobians(model, x)
    assert list(found) == ["0.weight"]
    wanted = jacrev(lambda w: x @ w.T @ w.T)(first.weight.detach())
    torch.testing.assert_close(found["0.weight"], wanted)


def test_frozen_and_unused_parameters() -> None:
    model, x = small()
    model.extra = nn.Parameter(torch.zeros(2))
    model.get_submodule("0").requires_grad_(False)
    found, _ = oracle.jacobians(model, x)
    assert list(found) == ["extra", "3.weight", "3.bias"]
    assert not found["extra"].any() and found["3.weight"].all(dim=0).any()


@pytest.mark.parametrize("likelihood", oracle.LIKELIHOODS)
def test_hessian_is_that_of_torch_func(likelihood: str) -> None:
    model, x = small()
    y = oracle.labels(model(x), likelihood)
    loss, vector = flat_function(model, x, y, likelihood)
    wanted = func_hessian(loss)(vector)
    torch.testing.assert_close(oracle.hessian(model, x, y, likelihood), wanted)


@pytest.mark.parametrize("likelihood", oracle.LIKELIHOODS)
def test_ggn_is_the_hessian_of_a_linear_model(likelihood: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()).double()
    x = torch.randn(3, 1, 3, 3, dtype=torch.float64)
    y = oracle.labels(model(x), likelihood)
    loss, vector = flat_function(model, x, y, likelihood)
    torch.testing.assert_close(oracle.ggn(model, x, y, likelihood), func_hessian(loss)(vector))


def test_inputs_by_position_and_by_name_are_the_same() -> None:
    model = nn.Bilinear(2, 3, 2)
    x = (torch.randn(4, 2), torch.randn(4, 3))
    by_name = {"input1": x[0], "input2": x[1]}
    y = torch.zeros(4, 2)
    assert oracle.ggn(model, x, y).equal(oracle.ggn(model, by_name, y))


def test_blocks_are_rows_and_columns_of_the_matrix() -> None:
    model = nn.Conv1d(2, 3, 2)
    matrix = torch.arange(15.0 * 15).reshape(15, 15)
    rows = matrix[:12, :12].reshape(3, 4, 3, 4)
    neurons = oracle.gather_blocks(matrix, torch.arange(12).reshape(3, 4))
    assert all(neurons[o].equal(rows[o, :, o]) for o in range(3))
    assert oracle.layer_block(matrix, model, ["weight", "bias"]).equal(matrix)


def test_kronecker_factors_are_exact_at_one_position_of_one_sample() -> None:
    layers = (nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3, 2))
    model = nn.Sequential(*layers).double()
    x = torch.randn(1, 2, 3, dtype=torch.float64)
    y = oracle.labels(model(x), "categorical")
    matrix = oracle.ggn(model, x, y, "categorical")
    h = oracle.output_hessian(model(x), y, "categorical")
    for uses in (kron_oracle.uses(recorded(model, x)), kron_oracle.uses_of_layers(model, x)):
        assert list(uses) == ["0.weight", "0.bias", "3.weight", "3.bias"]
        for name, one in uses.items():
            block = oracle.block(matrix, model, name)
            assert not one.exact
            torch.testing.assert_close(one.block(h, torch.zeros_like(block), False), block)


def test_scalar_parameters_have_a_place_in_matrices() -> None:
    model = Net(lambda net, x: net.scale.exp() * x, scale=nn.Parameter(torch.tensor(0.0)))
    x = torch.tensor([[1.0], [2.0]])
    # With e^s = 1 and y = 0, the loss x^2 e^2s / 2 has second derivative 2 x^2, its GGN x^2.
    y = torch.zeros(2, 1)
    assert oracle.ggn(model, x, y).tolist() == [[5.0]]
    assert oracle.hessian(model, x, y).tolist() == [[10.0]]
    assert oracle.empirical(model, x, y).tolist() == [[17.0]]
    assert oracle.diag(oracle.ggn(model, x, y), model)["scale"].shape == ()


@pytest.mark.parametrize("name", ["linear-2d", "conv2d-stride", "u-net", "module-twice", "gate"])
def test_op_by_op_without_a_threshold_is_the_diagonal(name: str) -> None:
    model, x = ZOO[name].make()
    y = oracle.labels(model(x), "categorical")
    found = op_oracle.mixed_diagonal(model, x, y, "categorical")
    for parameter, value in oracle.diag(oracle.ggn(model, x, y, "categorical"), model).items():
        torch.testing.assert_close(found[parameter], value)


def test_op_by_op_approximately_is_exact_where_nothing_is_lost() -> None:
    """Where every Jacobian is diagonal."""
    owned = {name: nn.Parameter(torch.randn(4)) for name in "abc"}
    model = Net(lambda net, x: F.softplus((x * net.a).tanh() * net.b) * net.c, **owned).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    y = oracle.labels(model(x), "poisson")
    found = op_oracle.mixed_diagonal(model, x, y, "poisson", threshold=0)
    for name, value in oracle.diag(oracle.ggn(model, x, y, "poisson"), model).items():
        torch.testing.assert_close(found[name], value)


def test_op_by_op_approximately_by_hand() -> None:
    # f = v tanh(u x): m at the output is 1, v^2 behind the product, (v (1 - h^2))^2 before tanh.
    x = torch.tensor([[0.5, -1.0]], dtype=torch.float64)
    u = torch.tensor([2.0, 1.0], dtype=torch.float64)
    v = torch.tensor([[3.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    owned = {"u": nn.Parameter(u), "v": nn.Parameter(v)}
    model = Net(lambda net, x: torch.tanh(net.u * x) @ net.v.T, **owned)
    found = op_oracle.mixed_diagonal(model, x, torch.zeros(1, 2), threshold=0)
    h = torch.tanh(u * x)
    m = v.square().sum(0) * (1 - h.square()).square()
    torch.testing.assert_close(found["u"], (m * x.square())[0])
    torch.testing.assert_close(found["v"], h.square().expand(2, 2))
