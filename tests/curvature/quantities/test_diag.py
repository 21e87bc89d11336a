"""Thresholds, samplers and options of the diagonal; test_support has every method on the zoo."""

from __future__ import annotations

from math import inf, sqrt
from statistics import NormalDist

import pytest
import torch
from torch import nn

import lapkernels as lk
from lapkernels.likelihoods import resolve
from lapkernels.ops.serving import forced
from tests.curvature import check, op_oracle
from tests.curvature.op_recording import recorded
from tests.curvature.zoo import ZOO


def diag(problem: check.Problem, method: str = "exact", **options: object) -> lk.Diagonal:
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
    return found


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


@pytest.mark.parametrize("noise", [noise for noise in check.NOISES if noise != "loss"])
def test_sampled_columns_are_unbiased(noise: str) -> None:
    """A z-test of every entry, which raises a false alarm once in a million seeds.

    Means of 24 x 64 columns are compared with the exact diagonal. Means of 64 are close enough to
    normal, and a factor of two is found even where a class is rare.
    """
    problem = check.problem(ZOO["conv1d"], noise)
    true = torch.cat([value.flatten() for value in problem.exact().values()])
    generator = torch.Generator().manual_seed(1)
    options = {"samples": 64, "generator": generator}
    runs = [diag(problem, "mc", **options) for _ in range(24)]
    found = torch.stack([torch.cat([v.flatten() for v in run.values()]) for run in runs])
    # Student's quantile of 23 degrees of freedom is wider than the normal one by this factor.
    student = 1.6
    limit = student * NormalDist().inv_cdf(1 - 1e-6 / (2 * len(true)))
    scale = true.max()
    spread = found.std(0) / sqrt(len(runs)) + 1e-12 * scale
    assert ((found.mean(0) - true).abs() <= limit * spread).all()
    assert limit * spread.max() < scale


@pytest.mark.parametrize("noise", check.NOISES)
def test_a_period_of_signs_is_exact(noise: str) -> None:
    problem = check.problem(ZOO["module-twice"], noise)
    columns = resolve(problem.likelihood).columns(problem.f, problem.y)
    period = 1 << (columns.signed - 1).bit_length()
    found = diag(problem, "mc", samples=period, sampler="signs", memory_budget=1)
    check.assert_close(found, problem.exact())


@pytest.mark.parametrize("sampler", ["labels", "signs"])
def test_a_tolerance_is_kept(sampler: str) -> None:
    """Errors in units of their standard errors, over independent runs."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 300)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.linspace(-1, 1, parameter.numel(), dtype=torch.float64)
            parameter.copy_(values.sin().view_as(parameter))
    x = torch.linspace(-1, 1, 60, dtype=torch.float64).view(12, 5)
    parts, exact = list(x.split(5)), lk.diag(model, x, "categorical")
    z: list[float] = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        options = {"sampler": sampler, "tolerance": 0.2, "generator": generator}
        found = lk.diag(model, parts, "categorical", "mc", **options)
        for name, error in found.standard_errors.items():
            assert 0 < error < 0.2 * found[name].sum()
            z.append(float(found[name].sum() - exact[name].sum()) / error)
    # Standard errors of 24 draws are uncertain by a sixth, so mean squares are near one.
    mean_square = sum(value**2 for value in z) / len(z)
    assert 0.5 < mean_square < 2


def test_few_columns_or_a_small_tolerance_are_exact() -> None:
    few = check.problem(ZOO["residual"], "categorical")
    model, x = nn.Linear(3, 40).double(), torch.randn(6, 3, dtype=torch.float64)
    for found, exact in (
        (diag(few, "mc", tolerance=0.5), few.exact()),
        (lk.diag(model, x, "categorical", "mc", tolerance=1e-4), lk.diag(model, x, "categorical")),
    ):
        check.assert_close(found, exact)
        assert set(found.standard_errors.values()) == {0.0}


def test_errors_of_parts_add_up() -> None:
    model, x = nn.Linear(3, 400), torch.randn(6, 3)
    one, two = (lk.diag(model, part, "gaussian", "mc", tolerance=0.2) for part in (x[:3], x[3:]))
    both = one.merge(two)
    for name, error in both.standard_errors.items():
        assert error == pytest.approx(
            (one.standard_errors[name] ** 2 + two.standard_errors[name] ** 2) ** 0.5
        )
    with pytest.raises(ValueError, match="only one of the two"):
        one.merge(lk.diag(model, x, "gaussian", "mc"))


def test_a_tolerance_out_of_reach_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapkernels.curvature.quantities.diag.MOST", 8)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 900))
    with pytest.warns(RuntimeWarning, match="not reached with 8 columns"):
        found = lk.diag(model, torch.randn(2, 3), "gaussian", "mc", tolerance=0.05)
    assert found.standard_errors["0.weight"] > 0.05 * found["0.weight"].sum()


@pytest.mark.parametrize("noise", ["gaussian", "gaussian-variance", "bernoulli", "poisson"])
def test_a_sign_does_not_matter_to_one_column(noise: str) -> None:
    problem = check.problem(ZOO["one-sample-one-feature"], noise)
    exact, found = diag(problem), diag(problem, "mc", sampler="signs")
    assert all(torch.equal(found[name], value) for name, value in exact.items())


@pytest.mark.parametrize("own", [True, False], ids=["given", "torch's own"])
@pytest.mark.parametrize("sampler", ["labels", "signs"])
def test_a_generator_makes_samples_again(sampler: str, own: bool) -> None:
    problem = check.problem(ZOO["residual"], "categorical")
    generator = torch.Generator() if own else None

    def run(seed: int) -> lk.Diagonal:
        (torch.manual_seed if generator is None else generator.manual_seed)(seed)
        return diag(problem, "mc", samples=3, sampler=sampler, generator=generator)

    first, again, other = run(0), run(0), run(1)
    assert all(torch.equal(first[name], value) for name, value in again.items())
    assert not any(torch.equal(first[name], value) for name, value in other.items())


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
        ({"method": "mc", "tolerance": 0}, "tolerance=0"),
        ({"method": "exact", "tolerance": 0.1}, "method 'mc', not 'exact'"),
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
