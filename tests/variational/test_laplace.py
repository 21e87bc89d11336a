"""Variational Laplace against its formula, term by term."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lapkernels.likelihoods import Categorical, Gaussian
from lapkernels.variational import VariationalLaplace
from tests.curvature.by_autograd.test_semantics import Once
from tests.variational.networks import dense, gaussian_kl, plain_loss, prepared, residual, sequences

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: dense(4, 6, 5, 3), (4,)),
    "residual": (residual, (2, 6, 6)),
    "sequences": (sequences, (2, 8)),
}


def case(name: str, **options: Any) -> tuple[VariationalLaplace, Tensor, Tensor]:
    build, shape = NETWORKS[name]
    model = prepared(build())
    generator = torch.Generator().manual_seed(1)
    q = VariationalLaplace(model, "categorical", 50, generator=generator, beta=0.7, **options)
    return q, torch.randn(5, *shape, dtype=torch.float64), torch.randint(3, (5,))


def drawn(q: VariationalLaplace, f: Tensor) -> Tensor:
    """The labels that the objective draws first."""
    return q.likelihood.sample(f.detach(), torch.Generator().manual_seed(1))


def gradients(q: VariationalLaplace, loss: Tensor) -> Tensor:
    """All of them in one vector."""
    found = torch.autograd.grad(loss, list(q.parameters()))
    return torch.cat([gradient.flatten() for gradient in found])


def assert_equal(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_exact_equals_plain_double_backward(name: str, training: bool) -> None:
    q, x, y = case(name)
    q.train(training)
    loss = q.loss(x, y)
    f = q.model(x)
    expected = plain_loss(q, f, y, drawn(q, f))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert_equal(gradients(q, loss), gradients(q, expected), 1e-10)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_difference_is_right_up_to_its_step(name: str, training: bool) -> None:
    """The error falls with the step, in proportion."""
    errors = []
    for step in (1e-4, 1e-6):
        q, x, y = case(name, route="difference", step=step)
        q.train(training)
        loss = q.loss(x, y)
        f = q.model(x)
        expected = plain_loss(q, f, y, drawn(q, f))
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        truth = gradients(q, expected)
        errors.append(((gradients(q, loss) - truth).norm() / truth.norm()).item())
    assert errors[0] < 1e-2
    assert errors[1] < 0.02 * errors[0]


def test_both_routes_train_alike() -> None:
    """Thirty steps of Adam in float32: losses that start at one value and stay together."""
    curves = []
    for route in ("exact", "difference"):
        q, x, y = case("residual", route=route)
        q, x = q.float().train(), x.float()
        optimizer = torch.optim.Adam(q.param_groups(1e-2))
        curve = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = q.loss(x, y)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(torch.tensor(curve))
    assert curves[0][-1] < 0.8 * curves[0][0]
    assert (curves[1] - curves[0]).abs().max() < 0.01 * (curves[0][0] - curves[0][-1])


@pytest.mark.parametrize("name", NETWORKS)
def test_squares_of_single_samples(name: str) -> None:
    q, x, y = case(name, curvature="samples")
    q.eval()
    loss = q.loss(x, y)
    f = q.model(x)
    labels = drawn(q, f)
    parts = [q.likelihood.nll(q.model(x[n : n + 1]), labels[n : n + 1]) for n in range(len(x))]
    expected = plain_loss(q, f, y, labels, parts)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert_equal(gradients(q, loss), gradients(q, expected), 1e-10)


def test_hessian() -> None:
    q, x, y = case("dense", curvature="hessian")
    loss = q.loss(x, y)
    flat = torch.cat([mean.flatten() for mean in q.means])

    def nll(flat: Tensor) -> Tensor:
        parts = flat.split([mean.numel() for mean in q.means])
        values = {n: v.view_as(m) for n, m, v in zip(q.names, q.means, parts, strict=True)}
        return q.likelihood.nll(torch.func.functional_call(q.model, values, x), y)

    hessian = torch.autograd.functional.hessian(nll, flat, create_graph=True)
    assert isinstance(hessian, Tensor)
    variance = torch.cat([(2 * log_std).exp().flatten() for log_std in q.log_std])
    fit = nll(flat) + 0.5 * (variance * hessian.diagonal()).sum()
    expected = fit / len(x) + q.beta / q.data_size * gaussian_kl(q)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert_equal(gradients(q, loss), gradients(q, expected), 1e-10)


@pytest.mark.parametrize("curvature", ["batch", "hessian"])
def test_only_a_hessian_lets_a_spread_grow_without_bound(curvature: Any) -> None:
    """tanh(w) with a target on the other side bends down by more than the prior bends up."""
    linear = nn.Linear(1, 1, bias=False)
    nn.init.constant_(linear.weight, 0.5)
    model = nn.Sequential(linear, nn.Tanh()).double()
    q = VariationalLaplace(model, "gaussian", 1, prior_std=1.0, curvature=curvature)
    x, y = torch.ones(1, 1).double(), torch.full((1, 1), -5.0).double()
    for log_std in (1.0, 2.0, 4.0):
        nn.init.constant_(q.log_std[0], log_std)
        (slope,) = torch.autograd.grad(q.loss(x, y), q.log_std[0])
        assert (slope.item() < 0) == (curvature == "hessian")


@pytest.mark.parametrize("curvature", ["batch", "samples", "hessian"])
def test_a_second_derivative_that_is_not_there_is_not_taken_for_zero(curvature: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    model.register_forward_hook(lambda *call: Once.apply(call[2]))
    q = VariationalLaplace(model, "gaussian", 3, curvature=curvature)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        q.loss(torch.ones(3, 2), torch.zeros(3, 1)).backward()


def test_gaussian_is_the_closed_form() -> None:
    """For a linear model the expected log-likelihood under q is known, by the exact Fisher."""
    model = nn.Linear(3, 1, bias=False).double()
    x, y = torch.randn(4, 3).double(), torch.randn(4, 1).double()
    q = VariationalLaplace(model, Gaussian(variance=0.5), 4, curvature="hessian")
    variance = (2 * q.log_std[0]).exp()
    truth = ((model(x) - y).square().sum() + (x.square() * variance).sum()) / (2 * 0.5)
    expected = truth / 4 + gaussian_kl(q) / 4
    torch.testing.assert_close(q.loss(x, y), expected, rtol=1e-12, atol=0)


def test_statistics_are_updated_once_on_both_routes() -> None:
    states = []
    for route in ("exact", "difference"):
        q, x, y = case("residual", route=route)
        q.train()
        q.loss(x, y)
        states.append(dict(q.model.named_buffers()))
    q, x, y = case("residual")
    q.train().model(x)
    for name, buffer in q.model.named_buffers():
        for state in states:
            torch.testing.assert_close(state[name], buffer)


def test_both_passes_drop_the_same_units() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    x, y = torch.randn(6, 4).double(), torch.randint(3, (6,))
    results = []
    for route in ("exact", "difference"):
        q = VariationalLaplace(
            model, Categorical(), 6, route=route, generator=torch.Generator().manual_seed(0)
        )
        torch.manual_seed(7)
        results.append((gradients(q, q.loss(x, y)), torch.rand(1)))
    assert_equal(results[1][0], results[0][0], 1e-6)
    torch.testing.assert_close(results[0][1], results[1][1])


def test_parameters_without_a_spread_have_gradients_too() -> None:
    for route in ("exact", "difference"):
        q, x, y = case("dense", params=["0"], route=route)
        assert q.names == ("0.weight", "0.bias")
        q.loss(x, y).backward()
        assert all(p.grad is not None and p.grad.norm() > 0 for p in q.parameters())


def test_gradients_accumulate_and_scale() -> None:
    q, x, y = case("dense", route="difference")
    (3 * q.loss(x, y)).backward()
    again, _, _ = case("dense", route="difference")
    for _ in range(3):
        again.generator = torch.Generator().manual_seed(1)
        again.loss(x, y).backward()
    for p, expected in zip(q.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(p.grad, expected.grad)


def test_derivatives_of_known_gradients_are_refused() -> None:
    q, x, y = case("dense", route="difference")
    with pytest.raises(RuntimeError, match='route="exact"'):
        torch.autograd.grad(q.loss(x, y), q.means, create_graph=True)


def test_a_kink_is_warned_of_by_name() -> None:
    with pytest.warns(UserWarning, match=r"1 \(ReLU\).*softplus"):
        VariationalLaplace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "gaussian", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        VariationalLaplace(nn.Sequential(nn.Linear(2, 2), nn.SiLU()), "gaussian", 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"route": "fast"}, "route"),
        ({"curvature": "fisher"}, "curvature"),
        ({"route": "difference", "curvature": "samples"}, "exact"),
        ({"step": 0.0}, "step"),
        ({"prior_std": -1.0}, "prior_std of 0.weight"),
        ({"prior_std": {"0": 1.0}}, "2.weight"),
        ({"beta": -1.0}, "beta"),
        ({"data_size": 0}, "data_size"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    given = {"data_size": 5, **options}
    with pytest.raises(ValueError, match=message):
        VariationalLaplace(dense(2, 2, 2), "gaussian", **given)
