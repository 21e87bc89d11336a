"""Thresholds, samplers and options of the diagonal; test_support has every method on the zoo."""

from __future__ import annotations

from math import inf, sqrt
from statistics import NormalDist

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.ops.serving import forced
from tests.curvature import check, op_oracle, oracle
from tests.curvature.op_recording import recorded
from tests.curvature.zoo import ZOO


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


def test_labels_that_are_ignored() -> None:
    problem = check.problem(ZOO["image-to-image"], "categorical")
    y = problem.y.clone()
    y[0, :2], y[1, 0, 0] = -100, -100
    true = oracle.diag(oracle.ggn(problem.model, problem.x, y, "categorical"), problem.model)
    check.assert_close(lk.diag(problem.model, (problem.x, y), "categorical"), true)


def test_losses_of_torch_are_likelihoods() -> None:
    model, x = ZOO["residual"].make()
    true = check.of(model, x, "categorical").exact()
    check.assert_close(lk.diag(model, x, nn.CrossEntropyLoss()), true)
    # A sum of squares, not of half squares.
    twice = {name: 2 * value for name, value in check.of(model, x).exact().items()}
    check.assert_close(lk.diag(model, x, nn.MSELoss(reduction="mean")), twice)


# Chains, skips, a weight with two uses, attention and gates.
MIXED = (
    *("linear-2d", "conv2d-stride", "residual-conv-batch-norm", "autoencoder", "residual"),
    *("u-net", "module-twice", "scaled-dot-product", "gate", "decoder"),
)


@pytest.mark.parametrize("name", MIXED)
def test_mixed_with_any_threshold(name: str) -> None:
    """From the approximate diagonal to the exact one."""
    problem = check.problem(ZOO[name], "categorical")
    passes = recorded(problem.model, problem.x, problem.output)
    for threshold in (0, 3, 6, 16, 31, inf):
        true = op_oracle.diagonal(problem.model, passes, problem.hessian(), threshold)
        check.assert_close(diag(problem, "mixed", threshold=threshold), true)
    check.assert_close(true, diag(problem))


@pytest.mark.parametrize("threshold", [7, 10, 30])
@pytest.mark.parametrize("noise", ["gaussian", "categorical"])
def test_mixed_through_bottlenecks(noise: str, threshold: int) -> None:
    """Values of 75, 6, 2, 8, 100 and 25 features: compressed at two, spread at the last layer."""
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
    problem = check.problem(ZOO["conv2d-stride"], "categorical")
    found = diag(problem, "mixed", threshold=16)
    assert check.error(found, diag(problem)) > 1e-3
    assert check.error(found, diag(problem, "approx")) > 1e-3


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
