"""Prior, noise and temperature from held-out data, and the cautious choice without them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace.tuning.choosing import GAIN, WIDENING, Search, separate_groups
from lapkernels.laplace.tuning.held_out import NODES, SPACING, Curves, curves_of, spline
from tests.laplace import dense
from tests.laplace.problems import PROBLEMS, classifier, regressor

STRUCTURES: dict[str, dict[str, Any]] = {
    "diag": {}, "kron": {}, "kron_corrected": {}, "blocks": {"by": "layer"}, "full": {},
    "low_rank": {"rank": 10}, "function_space": {}, "subnetwork": {"size": 20},
}  # fmt: skip


# Of the spline between nodes a decade apart.
ERROR = 5 / 384 * SPACING**4 / 8


def curves(la: lk.Laplace, data: Any, nodes: Tensor) -> Curves:
    groups = separate_groups(la.prior, la.posterior)
    return curves_of(
        la.model, data, la.posterior, la.likelihood, None, list(groups.values()), nodes,
        torch.Generator(),
    )  # fmt: skip


@pytest.mark.parametrize("make", PROBLEMS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_one_pass_has_the_variance_of_every_precision(structure: str, make: str) -> None:
    problem = PROBLEMS[make]()
    la = lk.Laplace(
        problem.model, problem.likelihood, structure, prior=0.3, **STRUCTURES[structure]
    )
    la.fit(problem.batches)
    nodes = torch.linspace(-9.2, 6.9, 8, dtype=torch.float64)
    kept = curves(la, problem.batches, nodes)
    zero = nodes.new_zeros(())
    for factor, error in ((math.exp(nodes[2]), 1e-9), (0.5, ERROR), (40.0, ERROR)):
        wanted = la.set_prior(0.3 * factor).predict(problem.x)
        found = kept.variance(nodes.new_tensor([math.log(factor)]), zero)
        torch.testing.assert_close(
            found, wanted.variance.reshape(found.shape), rtol=error, atol=1e-12
        )
        y = problem.y
        nll = kept.nll(nodes.new_tensor([math.log(factor)]), zero, zero).sum()
        assert float(nll) == pytest.approx(-float(wanted.log_likelihood(y).sum()), rel=error)


def test_groups_noise_and_temperature_have_their_place() -> None:
    """A factor for each layer, c, and logits divided by a temperature, against predictions."""
    nodes = torch.linspace(-6.9, 6.9, 7, dtype=torch.float64)
    problem = regressor()
    la = lk.Laplace(problem.model, "gaussian", "kron", prior="layer").fit(problem.batches)
    kept = curves(la, problem.batches, nodes)
    la.set_prior({"0": math.exp(nodes[1]), "2": math.exp(nodes[3])})
    la.scale = la.scale * math.exp(2.3)
    la._posterior = None
    found = kept.nll(nodes[[1, 3]], nodes.new_tensor(2.3), nodes.new_zeros(())).sum()
    wanted = la.predict(problem.x).log_likelihood(problem.y).sum()
    assert float(found) == pytest.approx(-float(wanted), rel=0.02)
    classes = classifier()
    la = lk.Laplace(classes.model, "categorical").fit(classes.batches)
    kept = curves(la, classes.batches, nodes)
    la.temperature = 1.7
    found = kept.nll(nodes[3:4], nodes.new_zeros(()), nodes.new_tensor(1.7).log()).sum()
    for how in ("linearised", "propagated"):
        p = la.predict(classes.x, how=how)
        mean, variance = p.mean / 1.7, p.variance / 1.7**2
        wanted = (mean / (1 + math.pi / 8 * variance).sqrt()).softmax(1)
        torch.testing.assert_close(p.probabilities, wanted)
        if how == "linearised":
            assert float(found) == pytest.approx(-float(p.log_likelihood(classes.y).sum()))


def test_spline_is_exact_at_nodes_and_straight_beyond() -> None:
    nodes = torch.linspace(-3, 4, NODES, dtype=torch.float64)
    torch.testing.assert_close(spline(nodes, nodes), torch.eye(NODES, dtype=torch.float64))
    line = 2 * nodes - 1
    s = nodes.new_tensor([-7.0, 0.3, 9.0])
    torch.testing.assert_close(spline(nodes, s) @ line, 2 * s - 1)
    s = nodes.new_tensor([0.3, 3.9, 4.1, -5.0]).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: spline(nodes, s), [s])


def test_the_choice_is_the_minimum() -> None:
    """Against a fine grid of precisions and noises, each predicted anew."""
    problem = regressor(60)
    train, held = (problem.x[:20], problem.y[:20]), (problem.x[20:], problem.y[20:])
    la = lk.Laplace(problem.model, "gaussian", "full").fit(train).tune([held])
    choice = la.choice
    assert choice is not None and choice.count == 80
    found = -float(la.predict(held[0]).log_likelihood(held[1]).mean())
    assert found == pytest.approx(choice.chosen, rel=0.01)
    assert choice.chosen <= choice.cautious + GAIN / 80
    prior, scale = float(la.prior.values[""]), la.scale
    for factor in (0.3, 0.7, 1.4, 3.0):
        la.scale = scale * factor
        other = la.set_prior(prior).predict(held[0]).log_likelihood(held[1])
        assert -float(other.mean()) > found


def test_a_temperature_is_found() -> None:
    """A network whose logits are twice too large, told by labels drawn from half of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4)).double().eval()
    model.get_parameter("0.weight").data.mul_(8)
    x = torch.randn(3000, 5, dtype=torch.float64)
    y = torch.multinomial((model(x).detach() / 2).softmax(1), 1)[:, 0]
    la = lk.Laplace(model, "classification", prior=1e6).fit((x[:1000], y[:1000]))
    la.tune((x[1000:], y[1000:]))
    assert 1.8 < la.temperature < 2.2
    assert la.choice is not None and la.choice.chosen < la.choice.plain - 0.05
    # Another prior is a new beginning.
    assert la.set_prior(1.0).temperature == 1 and la.choice is None


def test_cautious_prior_widens_by_so_much() -> None:
    """γ / 2 is 0.003 for each target, or γ a tenth of the parameters."""
    for count, wanted in ((40, 2 * WIDENING * 40), (4000, None)):
        problem = classifier(count)
        la = lk.Laplace(problem.model, "categorical", "full", prior=0.7)
        la.fit((problem.x, problem.y)).tune(by="cautious")
        precision = dense.prior_diagonal(problem, la.prior.precision)
        h = problem.ggn()
        gamma = torch.linalg.solve(h + torch.diag(precision), h).trace()
        limit = wanted or min(2 * WIDENING * count, len(h) / 10)
        assert float(gamma) == pytest.approx(limit, rel=0.06)
    assert la.temperature == 1


def test_without_data_one_warning_says_what_to_give() -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical").fit(problem.batches)
    with pytest.warns(UserWarning, match=r"la.tune\(held_out\)") as caught:
        la.tune()
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la.tune(by="cautious")
    with pytest.warns(UserWarning, match="these are the training data"):
        la.tune(problem.batches)


def test_dense_outputs_keep_some_positions_and_skip_ignored_ones() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3, padding=1).double().eval()
    x = torch.randn(4, 2, 12, 12, dtype=torch.float64)
    y = torch.randint(3, (4, 12, 12))
    y[:, 6:] = -100
    la = lk.Laplace(model, "categorical").fit((x, y))
    kept = curves(la, [(x, y)], torch.linspace(-3, 3, 4, dtype=torch.float64))
    assert 100 < kept.count < 240 and int(kept.y.min()) >= 0
    wanted = la.predict(x).variance.movedim(1, -1).flatten(0, 2)
    found = kept.variance(torch.zeros(1, dtype=torch.float64), torch.zeros(()).double())
    nearest = torch.cdist(kept.mean, model(x).detach().movedim(1, -1).flatten(0, 2)).argmin(1)
    torch.testing.assert_close(found, wanted[nearest], rtol=ERROR, atol=0)
    la.tune([(x, y)])


@pytest.mark.parametrize("likelihood", ["bernoulli", "heteroscedastic", "poisson"])
def test_other_likelihoods(likelihood: str) -> None:
    problem = classifier()
    wide = nn.Sequential(problem.model, nn.Linear(3, 4).double()).eval()
    y = torch.rand(12, 2 if likelihood == "heteroscedastic" else 4, dtype=torch.float64).round()
    la = lk.Laplace(wide, likelihood).fit((problem.x, y))
    if likelihood == "poisson":
        with pytest.raises(NotImplementedError, match=r"tune\(by='evidence'\)"):
            la.tune((problem.x, y))
        return
    kept = curves(la, [(problem.x, y)], torch.linspace(-3, 3, 4, dtype=torch.float64))
    zero = torch.zeros(1, dtype=torch.float64)
    wanted = -la.predict(problem.x).log_likelihood(y).sum()
    assert float(kept.nll(zero, zero[0], zero[0]).sum()) == pytest.approx(float(wanted), rel=0.01)
    la.tune((problem.new, y[:4]))


def test_soft_targets() -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical").fit(problem.batches)
    soft = torch.rand(12, 3, dtype=torch.float64).softmax(1)
    kept = curves(la, [(problem.x, soft)], torch.linspace(-3, 3, 4, dtype=torch.float64))
    zero = torch.zeros(1, dtype=torch.float64)
    wanted = -la.predict(problem.x).log_likelihood(soft).sum()
    assert float(kept.nll(zero, zero[0], zero[0]).sum()) == pytest.approx(float(wanted), rel=0.01)


def test_minimum_over_groups() -> None:
    """The gradient is zero in the numbers that are free."""
    problem = regressor(40)
    la = lk.Laplace(problem.model, "gaussian", "diag", prior="layer").fit(problem.batches)
    nodes = torch.linspace(-9, 4, NODES, dtype=torch.float64)
    search = Search(curves(la, [(problem.x, problem.y)], nodes), 2)
    _, point = search.minimum(nodes.new_zeros(5), [0, 1, 3, 4])
    point.requires_grad_()
    search.loss(point).backward()
    assert point.grad is not None and float(point.grad[[0, 1, 3, 4]].abs().max()) < 0.01
