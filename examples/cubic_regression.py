"""Uncertainty of y = x³ + noise by four structures of a Laplace approximation.

A perceptron with 30 hidden units on 30 points of [-4, 4] with a gap in the middle. Prints for each
structure the log evidence, the tuned noise (true: 3), the share of new points inside two standard
deviations, and how much wider the band is in the gap and outside the data than at the data.

    python examples/cubic_regression.py --out results
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import plot_bands

STRUCTURES = {
    "full": {"structure": "full"},
    "layer blocks": {"structure": "blocks", "by": "layer"},
    "diagonal": {"structure": "diag"},
    "subnetwork of 30": {"structure": "subnetwork", "size": 30},
}
NOISE = 3.0


def points(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs outside the gap (-1.5, 1.5), and targets."""
    x = torch.rand(count, 1, generator=generator, dtype=torch.float64) * 2.5 + 1.5
    x = x * (torch.arange(count).unsqueeze(1) % 2 * 2 - 1)
    return x, x**3 + NOISE * torch.randn(count, 1, generator=generator, dtype=torch.float64)


def trained(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    """A model at its maximum a posteriori, more or less."""
    model = nn.Sequential(nn.Linear(1, 30), nn.SiLU(), nn.Linear(30, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        penalty = sum(p.square().sum() for p in model.parameters())
        ((model(x) - y).square().sum() / (2 * NOISE**2) + 0.05 * penalty).backward()
        optimizer.step()
    return model


def main() -> None:
    """Fit, tune, print, draw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="train for a few steps only")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="save table and figure there")
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    x, y = points(30, generator)
    model = trained(x, y, 200 if options.quick else 3000)
    new, target = points(2000, generator)
    middle = torch.zeros(1, 1, dtype=torch.float64)
    outside = torch.tensor([[-6.0], [6.0]], dtype=torch.float64)
    grid = torch.linspace(-6, 6, 200, dtype=torch.float64).unsqueeze(1)
    drawn = {}
    print(f"{'':<18}{'evidence':>9}{'noise':>7}{'inside':>8}{'gap':>6}{'outside':>9}")
    for name, settings in STRUCTURES.items():
        la = lk.Laplace(model, lk.likelihoods.Gaussian(NOISE**2), prior=0.1, **settings)
        la.fit((x, y)).tune("linearised" if name == "full" else "evidence", [(x, y)])
        found = la.predict(new)
        total = (found.variance + found.noise).sqrt()
        inside = ((target - found.mean).abs() < 2 * total).double().mean()
        at_data = la.predict(x).std.mean()
        ratios = [float(la.predict(place).std.mean() / at_data) for place in (middle, outside)]
        noise = float(found.noise[0, 0].sqrt())
        print(
            f"{name:<18}{float(la.log_evidence()):>9.1f}{noise:>7.2f}{float(inside):>8.3f}"
            f"{ratios[0]:>6.2f}{ratios[1]:>9.2f}"
        )
        drawn[name] = la.predict(grid)
    if options.out:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(1, len(drawn), figsize=(13, 3.2), sharey=True)
        for ax, (name, prediction) in zip(axes, drawn.items(), strict=True):
            plot_bands(grid, prediction, ax)
            ax.plot(grid, grid**3, color="black", linewidth=1)
            ax.plot(x, y, "k.")
            ax.set(title=name, xlabel="x", ylim=(-150, 150))
        figure.tight_layout()
        options.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(options.out / "cubic_regression.png", dpi=90)


if __name__ == "__main__":
    main()
