"""Uncertainty of y = x³ + noise out of an optimiser, beside five other ways.

Perceptrons with 40 ReLU units on 20 points of [-4, 4]. For each method: the share of new points
inside two standard deviations (noise included; 0.954 is right) between the data and beyond them
(4 < |x| < 6), and the mean ratio of the standard deviation of f to that of Hamiltonian Monte Carlo.

    python examples/l2m_cubic.py --out results

Needs numpyro: pip install numpyro
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from common import options, show, spread, table
from hamiltonian import NOISE, cubic, hamiltonian
from pictures import DATA, PALETTE, bands, claim, figure
from torch import Tensor, nn

import lapkernels as lk

WIDTH, BATCH, MEMBERS, DRAWS = 40, 5, 5, 500
# Of the prior of every weight and bias, where a method has one.
PRECISION = 0.1
GRID = torch.linspace(-6, 6, 121, dtype=torch.float64).unsqueeze(1)
REFERENCE, PUBLISHED = "Hamiltonian Monte Carlo", "L2M, as published"


@dataclass(frozen=True)
class Case:
    """Data, and inputs [G, 1] at which f is wanted."""

    x: Tensor
    y: Tensor
    points: Tensor
    steps: int


Moments = tuple[Tensor, Tensor]  # mean and standard deviation of f, [G] each


def perceptron(dropout: float = 0.0) -> nn.Sequential:
    """One hidden layer."""
    middle = [nn.ReLU(), nn.Dropout(dropout)] if dropout else [nn.ReLU()]
    return nn.Sequential(nn.Linear(1, WIDTH), *middle, nn.Linear(WIDTH, 1)).double()


def fit(
    model: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor,
    steps: int, after: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Mean negative log-likelihood of batches, with a rate that falls to zero unless ``after``."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        part = torch.randperm(len(x))[:BATCH]
        optimizer.zero_grad()
        ((model(x[part]) - y[part]).square().mean() / (2 * NOISE**2)).backward()
        optimizer.step()
        if after is None:
            schedule.step()
        else:
            after()


def trained(case: Case, y: Tensor | None = None) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A perceptron at the mode, and the optimiser that brought it there."""
    model = perceptron()
    optimizer = _optimizer(model, case)
    fit(model, optimizer, case.x, case.y if y is None else y, case.steps)
    return model, optimizer


def _optimizer(model: nn.Module, case: Case) -> torch.optim.Optimizer:
    """AdamW: its decay stays out of the second moment."""
    return torch.optim.AdamW(model.parameters(), 3e-2, weight_decay=PRECISION / len(case.x))


def _moments(outputs: list[Tensor]) -> Moments:
    stacked = torch.stack(outputs).squeeze(-1)
    return stacked.mean(0), stacked.std(0)


def l2m(case: Case, **settings: Any) -> Moments:
    """Networks drawn around one mode."""
    model, optimizer = trained(case)
    q = lk.L2M.from_optimizer(
        optimizer, model, lk.likelihoods.Gaussian(NOISE**2),
        data_size=len(case.x), batch_size=BATCH, **{"prior": PRECISION, **settings},
    )  # fmt: skip
    p = q.predict(case.points, how="weights", samples=DRAWS)
    return p.mean.flatten(), p.std.flatten()


def l2m_published(case: Case) -> Moments:
    """The precision E[g²] + 1/λ of the publication."""
    return l2m(case, convention="paper")


@torch.no_grad()
def _each(models: list[nn.Module], points: Tensor) -> list[Tensor]:
    return [model(points) for model in models]


def ensemble(case: Case) -> Moments:
    """Modes from several starts."""
    return _moments(_each([trained(case)[0] for _ in range(MEMBERS)], case.points))


def dropout(case: Case) -> Moments:
    """Units dropped in training and in prediction."""
    model = perceptron(0.1)
    fit(model, _optimizer(model, case), case.x, case.y, case.steps)
    return _moments(_each([model] * DRAWS, case.points))


def swag(case: Case) -> Moments:
    """Mean and diagonal variance of the weights along stochastic gradient descent."""
    model, _ = trained(case)
    weights: list[Tensor] = []
    fit(
        model, torch.optim.SGD(model.parameters(), 1e-2), case.x, case.y, case.steps // 4,
        lambda: weights.append(nn.utils.parameters_to_vector(model.parameters()).detach()),
    )  # fmt: skip
    path = torch.stack(weights)
    mean, std = path.mean(0), path.std(0)
    outputs = []
    for _ in range(DRAWS):
        nn.utils.vector_to_parameters(mean + std * torch.randn_like(std), model.parameters())
        outputs += _each([model], case.points)
    return _moments(outputs)


def randomised_priors(case: Case) -> Moments:
    """An ensemble in which every member adds to a fixed network of its own, on noisy targets."""
    outputs = []
    for _ in range(MEMBERS):
        fixed, model = perceptron(), perceptron()
        with torch.no_grad():
            for p in fixed.parameters():
                p.normal_(std=PRECISION**-0.5)
            away = fixed(case.x)
            y = case.y + NOISE * torch.randn_like(case.y) - away
        fit(model, _optimizer(model, case), case.x, y, case.steps)
        with torch.no_grad():
            outputs.append(fixed(case.points) + model(case.points))
    return _moments(outputs)


METHODS: dict[str, Callable[[Case], Moments]] = {
    "L2M": l2m,
    "MC dropout": dropout,
    "deep ensemble": ensemble,
    "SWAG, diagonal": swag,
    "randomised priors": randomised_priors,
}


def moments(seed: int, quick: bool) -> tuple[Case, Tensor, dict[str, Moments]]:
    """Data of a seed, new targets behind the grid's points, and what every method says."""
    x, y = cubic(20, seed)
    new, target = cubic(1000, 1000 + seed, limit=6.0)
    case = Case(x, y, torch.cat([GRID, new]), 100 if quick else 2000)
    torch.manual_seed(seed)
    found = {name: method(case) for name, method in METHODS.items()}
    count = {"samples": 5, "warmup": 5, "chains": 1} if quick else {"samples": 400, "warmup": 400}
    draws = hamiltonian(perceptron(), x, y, case.points, precision=PRECISION, seed=seed, **count)
    found[REFERENCE] = draws.mean, draws.std
    found[PUBLISHED] = l2m_published(case)
    return case, target.flatten(), found


def main() -> None:
    """Some data sets, one table, six panels of the first."""
    arguments = options(__doc__).parse_args()
    seeds = range(arguments.seed, arguments.seed + (1 if arguments.quick else 3))
    runs = [moments(seed, arguments.quick) for seed in seeds]
    rows: list[list[str]] = []
    widths: dict[str, list[float]] = {}
    for name in runs[0][2]:
        cells: list[str] = []
        for between in (True, False):
            shares, ratios = [], []
            for case, target, found in runs:
                mean, std = found[name]
                where = (case.points.flatten().abs() <= 4) == between
                where[: len(GRID)] = False
                total = (std.square() + NOISE**2).sqrt()[where]
                away = (target - mean[len(GRID) :]).abs()[where[len(GRID) :]]
                shares.append(float((away < 2 * total).double().mean()))
                ratios.append(float((std / found[REFERENCE][1])[where].mean()))
            cells += [spread(shares), spread(ratios, 2)]
            widths.setdefault(name, ratios)
        rows.append([name, *cells])
    header = ["method", "inside 2σ", "σ / σ_HMC", "inside 2σ, beyond", "σ / σ_HMC, beyond"]
    text = f"{table(header, rows)}\n\nMean ± standard error over {len(runs)} data sets."
    show("l2m_cubic", text, draw(runs[0][0], runs[0][2], widths), arguments.out)


def draw(case: Case, found: dict[str, Moments], widths: dict[str, list[float]]) -> Any:
    """A panel for each method on the first data set, the row that matches the paper first.

    The last panel has the widths of all data sets over that of the reference.
    """
    drawing, axes = figure(2, 4, (14, 6.2))
    across = GRID.flatten()
    order = [REFERENCE, PUBLISHED, *(name for name in found if name not in (REFERENCE, PUBLISHED))]
    for ax, name in zip(axes.flat, order, strict=False):
        mean, std = (values[: len(GRID)] for values in found[name])
        bands(ax, across, mean, std)
        ax.plot(across, across**3, ":", color=DATA, linewidth=1)
        ax.plot(case.x, case.y, ".", color=DATA)
        ax.set(title=name, ylim=(-200, 200), xlim=(-6, 6))
    ax = axes[1, 3]
    rest = order[1:]
    ax.errorbar(
        [fmean(widths[name]) for name in rest], range(len(rest)),
        xerr=[stdev(widths[name]) if len(widths[name]) > 1 else 0 for name in rest],
        fmt="o", color=PALETTE[0], capsize=3,
    )  # fmt: skip
    ax.axvline(1, color=DATA, linewidth=1)
    ax.set_yticks(range(len(rest)), rest)
    ax.invert_yaxis()
    ax.set(xscale="log", title="σ over that of Hamiltonian Monte Carlo, at the data")
    claim(drawing, "L2M as published is about as wide as Hamiltonian Monte Carlo; 1σ and 2σ of f")
    return drawing


if __name__ == "__main__":
    main()
