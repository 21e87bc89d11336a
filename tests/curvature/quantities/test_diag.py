"""The diagonal by every method, against brute force."""

from __future__ import annotations

import re
from math import inf, sqrt
from statistics import NormalDist

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.ops.serving import forced
from tests.curvature import check, dags, op_oracle, oracle
from tests.curvature.op_recording import recorded
from tests.curvature.zoo import ZOO, Network

# Other than the Gaussian of unit noise, which all networks are tested with.
OTHERS = (
    "categorical",
    "gaussian-variance-of-each-output",
    "bernoulli",
    "gaussian-variance",
    "poisson",
)
SOME = list(ZOO.values())[::6]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def diag(problem: check.Problem, method: str = "exact", **options: object) -> dict[str, Tensor]:
    """The package's result for a problem."""
    with check.quiet():
        found = lk.diag(
            problem.model,
            problem.data,
            problem.likelihood,
            method,  # pyright: ignore[reportArgumentType]
            output=problem.output,
            **options,  # pyright: ignore[reportArgumentType]
        )
    assert found.count == len(problem.f)
    return dict(found)


@pytest.mark.parametrize("network", check.networks(ZOO.values()))
def test_exact(network: Network) -> None:
    problem = check.problem(network)
    true = problem.exact()
    by_rules = diag(problem)
    by_autograd = diag(problem, route="autograd")
    check.assert_close(by_rules, true)
    check.assert_close(by_autograd, true)
    check.assert_close(by_rules, by_autograd)
    try:
        only_rules = diag(problem, route="rules")
    except lk.Refused as refused:
        assert re.search(r"\bin\b|runs|computes", str(refused)), "the message names no place"
    else:
        check.assert_close(only_rules, true)


@pytest.mark.parametrize("network", check.networks(ZOO.values()))
def test_exact_with_other_noise(network: Network) -> None:
    problem = check.problem(network, check.rotated(network, OTHERS))
    check.assert_close(diag(problem), problem.exact())


@pytest.mark.parametrize("network", check.networks(list(ZOO.values())[::2]))
def test_empirical(network: Network) -> None:
    words = ("gaussian", *OTHERS)
    problem = check.problem(network, check.rotated(network, words))
    route = check.rotated(network, ("auto", "autograd"))
    check.assert_close(diag(problem, "empirical", route=route), problem.empirical())


@pytest.mark.parametrize("noise", check.NOISES)
@pytest.mark.parametrize("name", ["image-to-image", "decoder", "u-net", "one-pixel"])
def test_images_out_of_a_network(name: str, noise: str) -> None:
    problem = check.problem(ZOO[name], noise)
    assert problem.f.dim() == 4
    true = problem.exact()
    check.assert_close(diag(problem), true)
    check.assert_close(diag(problem, route="autograd"), true)


def test_labels_that_are_ignored() -> None:
    problem = check.problem(ZOO["image-to-image"], "categorical")
    y = problem.y.clone()
    y[0, :2], y[1, 0, 0] = -100, -100
    true = oracle.diag(oracle.ggn(problem.model, problem.x, y, "categorical"), problem.model)
    check.assert_close(lk.diag(problem.model, (problem.x, y), "categorical"), true)


@pytest.mark.parametrize("route", ["auto", "autograd"])
@pytest.mark.parametrize("network", check.networks(SOME))
def test_float32(network: Network, route: str) -> None:
    problem = check.problem(network, check.rotated(network, OTHERS), torch.float32)
    found = diag(problem, route=route)
    assert all(value.dtype == torch.float32 for value in found.values())
    check.assert_close(found, problem.exact(), 1e-5)


def test_losses_of_torch_are_likelihoods() -> None:
    model, x = ZOO["residual"].make()
    true = check.of(model, x, "categorical").exact()
    check.assert_close(lk.diag(model, x, nn.CrossEntropyLoss()), true)
    # A sum of squares, not of half squares.
    twice = {name: 2 * value for name, value in check.of(model, x).exact().items()}
    check.assert_close(lk.diag(model, x, nn.MSELoss(reduction="mean")), twice)


@pytest.mark.parametrize("noise", ["poisson", "categorical"])
@pytest.mark.parametrize("name", dags.DAGS)
def test_approx_of_stages(name: str, noise: str) -> None:
    dag = dags.make(name)
    problem = check.of(dag.module, dag.x, noise)
    true = oracle.approx_diagonal(dag.stages, dag.parameters, dag.x, problem.y, problem.loss)
    check.assert_close(diag(problem, "approx"), true)


@pytest.mark.parametrize("name", dags.DAGS)
def test_mixed_has_exact_and_approx_as_ends(name: str) -> None:
    dag = dags.make(name)
    problem = check.of(dag.module, dag.x, "categorical")
    check.assert_close(diag(problem, "mixed", threshold=inf), diag(problem))
    check.assert_close(diag(problem, "mixed", threshold=0), diag(problem, "approx"))


@pytest.mark.parametrize("threshold", [3, 6, 16, 31])
@pytest.mark.parametrize("name", dags.DAGS)
def test_mixed_of_stages(name: str, threshold: int) -> None:
    dag = dags.make(name)
    problem = check.of(dag.module, dag.x, "categorical")
    true = op_oracle.mixed_diagonal(dag.module, dag.x, problem.y, problem.loss, threshold=threshold)
    check.assert_close(diag(problem, "mixed", threshold=threshold), true)


@pytest.mark.parametrize("threshold", [7, 10, 30])
@pytest.mark.parametrize("noise", ["gaussian", "categorical"])
def test_mixed_through_bottlenecks(noise: str, threshold: int) -> None:
    """Values of 75, 6, 2, 8, 100 and 25 features: compressed at two, spread at the last layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten()),
        *(nn.Linear(75, 6), nn.Tanh(), nn.Linear(6, 2), nn.Linear(2, 8), nn.Tanh()),
        *(nn.Unflatten(1, (2, 2, 2)), nn.ConvTranspose2d(2, 4, 3, 2), nn.Tanh()),
        *(nn.Conv2d(4, 1, 3, padding=1), nn.Flatten()),
    ).double()
    problem = check.of(model, torch.randn(3, 1, 5, 5, dtype=torch.float64), noise)
    true = op_oracle.mixed_diagonal(model, problem.x, problem.y, problem.loss, threshold=threshold)
    check.assert_close(diag(problem, "mixed", threshold=threshold), true)
    with forced(compressed=False):
        check.assert_close(diag(problem, "mixed", threshold=threshold), true)


def test_mixed_lies_between() -> None:
    """The thresholds above do switch: results differ from both ends."""
    dag = dags.make("conv-chain")
    problem = check.of(dag.module, dag.x, "categorical")
    found = diag(problem, "mixed", threshold=16)
    assert check.error(found, diag(problem)) > 1e-3
    assert check.error(found, diag(problem, "approx")) > 1e-3


def op_by_op(network: Network, samples: int) -> None:
    problem = check.problem(network, check.rotated(network, OTHERS), samples=samples)
    passes = recorded(problem.model, problem.x, problem.output)
    for threshold in (0, 7):
        true = op_oracle.diagonal(problem.model, passes, problem.hessian(), threshold)
        try:
            found = diag(problem, "mixed", threshold=threshold)
        except lk.Refused as refused:
            # A reason must be given, and for chains of layers there is none.
            assert re.search("expression of parameters", str(refused)), refused
            assert network.group not in ("conv", "linear", "activation", "skip", "pool"), refused
        else:
            check.assert_close(found, true, 1e-9)


# Ops of complex numbers, and one whose gradient torch writes by hand, have no J op by op.
NOT_OP_BY_OP = ("shape-fourier", "cosine-similarity")


def op_networks(step: int) -> list[Network]:
    return [network for network in ZOO.values() if network.id not in NOT_OP_BY_OP][::step]


@pytest.mark.parametrize("network", check.networks(op_networks(1)))
def test_approx_and_mixed_of_every_network(network: Network) -> None:
    op_by_op(network, network.samples)


@pytest.mark.parametrize("name", dags.DAGS)
def test_brute_force_op_by_op_is_itself_exact(name: str) -> None:
    dag = dags.make(name)
    problem = check.of(dag.module, dag.x, "categorical")
    arguments = (problem.model, problem.x, problem.y, problem.loss)
    check.assert_close(op_oracle.mixed_diagonal(*arguments), problem.exact())
    true = oracle.approx_diagonal(dag.stages, dag.parameters, dag.x, problem.y, problem.loss)
    check.assert_close(op_oracle.mixed_diagonal(*arguments, threshold=0), true)


@pytest.mark.parametrize(
    "name, sampler, noise",
    [
        *(("conv1d", "labels", noise) for noise in check.NOISES if noise != "loss"),
        *(("module-twice", "signs", noise) for noise in check.NOISES),
    ],
)
def test_sampled_columns_are_unbiased(name: str, noise: str, sampler: str) -> None:
    """A z-test of every entry, which raises a false alarm once in a million seeds.

    Means of 24 x 64 columns are compared with the exact diagonal. Means of 64 are close enough to
    normal, and a factor of two is found even where a class is rare.
    """
    problem = check.problem(ZOO[name], noise)
    true = torch.cat([value.flatten() for value in problem.exact().values()])
    generator = torch.Generator().manual_seed(1)
    options = {"samples": 64, "sampler": sampler, "generator": generator}
    runs = [diag(problem, "mc", **options) for _ in range(24)]
    found = torch.stack([torch.cat([v.flatten() for v in run.values()]) for run in runs])
    # Student's quantile of 23 degrees of freedom is wider than the normal one by this factor.
    student = 1.6
    limit = student * NormalDist().inv_cdf(1 - 1e-6 / (2 * len(true)))
    scale = true.max()
    spread = found.std(0) / sqrt(len(runs)) + 1e-12 * scale
    assert ((found.mean(0) - true).abs() <= limit * spread).all()
    assert limit * spread.max() < scale


@pytest.mark.parametrize("noise", ["gaussian", "gaussian-variance", "bernoulli", "poisson"])
def test_a_sign_does_not_matter_to_one_column(noise: str) -> None:
    problem = check.problem(ZOO["one-sample-one-feature"], noise)
    exact, found = diag(problem), diag(problem, "mc", sampler="signs")
    assert all(torch.equal(found[name], value) for name, value in exact.items())


@pytest.mark.parametrize("sampler", ["labels", "signs"])
def test_a_generator_makes_samples_again(sampler: str) -> None:
    problem = check.problem(ZOO["residual"], "categorical")

    def run(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return diag(problem, "mc", samples=3, sampler=sampler, generator=generator)

    first, again, other = run(0), run(0), run(1)
    assert all(torch.equal(first[name], value) for name, value in again.items())
    assert not any(torch.equal(first[name], value) for name, value in other.items())


def test_torchs_own_generator_makes_samples_again() -> None:
    problem = check.problem(ZOO["residual"], "categorical")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first, second = diag(problem, "mc"), diag(problem, "mc")
        torch.manual_seed(3)
        again = diag(problem, "mc")
    assert all(torch.equal(first[name], value) for name, value in again.items())
    assert not all(torch.equal(first[name], value) for name, value in second.items())


def test_samples_one_at_a_time_are_said_to_be_slow() -> None:
    problem = check.problem(ZOO["branch-of-each-sample"])
    with pytest.warns(RuntimeWarning, match="one at a time"):
        lk.diag(problem.model, problem.x)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"method": "fisher"}, "method='fisher'"),
        ({"method": "mc", "samples": 0}, "samples=0"),
        ({"method": "mc", "sampler": "normal"}, "sampler='normal'"),
        ({"method": "empirical"}, "needs labels"),
        ({"route": "forward"}, "route='forward'"),
        ({"likelihood": "student"}, "student"),
        ({"memory_budget": -1}, "memory_budget=-1"),
        ({"method": "mixed", "threshold": float("nan")}, "threshold=nan"),
    ],
)
def test_bad_options(options: dict[str, object], words: str) -> None:
    model, x = ZOO["residual"].make()
    with pytest.raises(ValueError, match=words):
        lk.diag(model, x, **options)  # pyright: ignore[reportArgumentType]


def test_vector_is_in_torchs_order() -> None:
    model, x = ZOO["residual"].make()
    found = lk.diag(model, x)
    named = {name: value for name, value in model.named_parameters()}
    assert list(found) == list(named)
    vector = nn.utils.parameters_to_vector([found[name] for name in named])
    assert torch.equal(found.vector(), vector)
