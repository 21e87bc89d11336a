"""Full, block-diagonal and diagonal Laplace against Hamiltonian Monte Carlo on y = x³ + noise.

A perceptron with 30 hidden units on 30 points of [-4, 4], prior and noise the same for all. For
each posterior: the share of new points inside two standard deviations (noise included; 0.954 is
right), and how far the standard deviation of f is from that of Hamiltonian Monte Carlo, as mean
|σ / σ_HMC - 1| and as the mean of σ / σ_HMC, at the data and beyond them (4 < |x| < 6).

    python examples/cubic_regression.py --out results

Needs numpyro: pip install numpyro
"""

from dataclasses import dataclass
from typing import Any

import torch
from common import options, show, spread, table
from hamiltonian import NOISE, Draws, cubic, hamiltonian
from torch import Tensor, nn

import lapkernels as lk

STRUCTURES: dict[str, dict[str, Any]] = {
    "full": {"structure": "full"},
    "blocks of a parameter": {"structure": "blocks", "by": "parameter"},
    "diagonal": {"structure": "diag"},
}
REFERENCE = "Hamiltonian Monte Carlo"
# Of the prior of every weight and bias.
PRECISION = 0.1
GRID = torch.linspace(-6, 6, 121, dtype=torch.float64).unsqueeze(1)


@dataclass(frozen=True)
class Band:
    """Mean and standard deviation of f on the grid, and the share of new points inside 2σ."""

    mean: Tensor
    std: Tensor
    inside: float


def trained(x: Tensor, y: Tensor, steps: int) -> nn.Sequential:
    """The maximum a posteriori, by L-BFGS behind Adam."""
    model = nn.Sequential(nn.Linear(1, 30), nn.SiLU(), nn.Linear(30, 1)).double()

    def loss() -> Tensor:
        penalty = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return (model(x) - y).square().sum() / (2 * NOISE**2) + 0.5 * PRECISION * penalty

    first = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(steps):
        first.zero_grad()
        loss().backward()
        first.step()
    second = torch.optim.LBFGS(model.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> float:
        second.zero_grad()
        value = loss()
        value.backward()
        return float(value.detach())

    second.step(closure)
    return model


def inside(mean: Tensor, std: Tensor, target: Tensor) -> float:
    """The share of targets within two standard deviations, noise included."""
    total = (std.square() + NOISE**2).sqrt()
    return float(((target.flatten() - mean).abs() < 2 * total).double().mean())


def bands(seed: int, quick: bool) -> tuple[tuple[Tensor, Tensor], dict[str, Band], Draws]:
    """Data of a seed and what every posterior says of them."""
    x, y = cubic(30, seed)
    new, target = cubic(200, 1000 + seed)
    torch.manual_seed(seed)
    model = trained(x, y, 100 if quick else 1500)
    points = torch.cat([GRID, new])
    found: dict[str, Band] = {}
    for name, settings in STRUCTURES.items():
        la = lk.Laplace(model, lk.likelihoods.Gaussian(NOISE**2), prior=PRECISION, **settings)
        p = la.fit((x, y)).predict(points)
        mean, std = p.mean.flatten(), p.std.flatten()
        share = inside(mean[len(GRID) :], std[len(GRID) :], target)
        found[name] = Band(mean[: len(GRID)], std[: len(GRID)], share)
    count = {"samples": 20, "warmup": 20} if quick else {}
    draws = hamiltonian(model, x, y, points, precision=PRECISION, seed=seed, **count)
    share = inside(draws.mean[len(GRID) :], draws.std[len(GRID) :], target)
    found[REFERENCE] = Band(draws.mean[: len(GRID)], draws.std[: len(GRID)], share)
    return (x, y), found, draws


def main() -> None:
    """Fit, draw, compare."""
    arguments = options(__doc__).parse_args()
    seeds = range(arguments.seed, arguments.seed + (1 if arguments.quick else 3))
    runs = [bands(seed, arguments.quick) for seed in seeds]
    at_data = GRID.flatten().abs() <= 4
    rows = []
    for name in runs[0][1]:
        cells = [name, spread([found[name].inside for _, found, _ in runs])]
        for where in (at_data, ~at_data):
            ratios = [(found[name].std / found[REFERENCE].std)[where] for _, found, _ in runs]
            cells.append(spread([float((ratio - 1).abs().mean()) for ratio in ratios]))
            cells.append(spread([float(ratio.mean()) for ratio in ratios]))
        rows.append(cells)
    head = ["posterior", "inside 2σ", "|σ / σ_HMC - 1|", "σ / σ_HMC", "the same beyond", "beyond"]
    worst = max(float(draws.split_r_hat.max()) for *_, draws in runs)
    least = min(float(draws.effective.min()) for *_, draws in runs)
    text = (
        f"{table(head, rows)}\n\nMean ± standard error over {len(runs)} data sets. Chains: split "
        f"R-hat at most {worst:.3f}, at least {least:.0f} independent draws at every point."
    )
    show("cubic_regression", text, drawn(*runs[0][:2]), arguments.out)


def drawn(data: tuple[Tensor, Tensor], found: dict[str, Band]) -> object:
    """A panel for each posterior, shades of one to three standard deviations of f."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(13, 3.4), sharey=True)
    across = GRID.flatten()
    for ax, (name, band) in zip(axes, found.items(), strict=True):
        for times in (3, 2, 1):
            low, high = band.mean - times * band.std, band.mean + times * band.std
            ax.fill_between(across, low, high, color="tab:orange", alpha=0.3, linewidth=0)
        ax.plot(across, across**3, color="black", linewidth=1)
        ax.plot(across, band.mean, color="tab:blue")
        ax.plot(*data, "k.")
        ax.set(title=name, xlabel="x", ylim=(-200, 200))
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main()
