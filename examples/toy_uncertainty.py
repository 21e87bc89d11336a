"""Four small problems of linearised Laplace: what it adds to a network, and how it is tuned.

- Regression: the linearised band against the spread of sampled networks, which leaves the data.
- Two classes: the network is certain far from the data, the posterior is not.
- MacKay's fixed point: prior, noise and the number of well-determined parameters of perceptrons of
  growing width, and the error that their band promises.
- In between: a gap in the inputs seen by full, Kronecker and diagonal posteriors over all weights,
  and by full ones over subnetworks of the weights with the largest variance.

    python examples/toy_uncertainty.py --out results
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from common import options, show, table
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import plot_bands

GRID = torch.linspace(-3, 3, 91, dtype=torch.float64).unsqueeze(1)
NOISE = 0.15


def wave(count: int, gap: float, seed: int) -> tuple[Tensor, Tensor]:
    """sin(2 x) with noise, x in [-2, 2] but for (-gap, gap)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=generator, dtype=torch.float64) * (2 - gap) + gap
    x = x * (torch.arange(count).unsqueeze(1) % 2 * 2 - 1)
    noise = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return x, (2 * x).sin() + NOISE * noise


def perceptron(*sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers with activations between them, in float64."""
    layers: list[nn.Module] = []
    for inner, outer in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inner, outer), activation()]
    return nn.Sequential(*layers[:-1]).double()


def to_optimum(model: nn.Module, loss: Any, precision: float, steps: int) -> None:
    """The maximum a posteriori: Adam, then L-BFGS."""

    def objective() -> Tensor:
        penalty = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return loss() + 0.5 * precision * penalty

    first = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        first.zero_grad()
        objective().backward()
        first.step()
    second = torch.optim.LBFGS(model.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> float:
        second.zero_grad()
        value = objective()
        value.backward()
        return float(value.detach())

    second.step(closure)


def regression(axes: Any, steps: int) -> str:
    """Linearised and sampled bands of two networks."""
    x, y = wave(40, 0.5, 0)
    new, target = wave(400, 0.5, 1)
    networks = {
        "50 tanh": perceptron(1, 50, 1),
        "20-20 ReLU": perceptron(1, 20, 20, 1, activation=nn.ReLU),
    }
    rows = []
    for column, (name, model) in enumerate(networks.items()):
        likelihood = lk.likelihoods.Gaussian(NOISE**2)
        to_optimum(model, lambda m=model: (m(x) - y).square().sum() / (2 * NOISE**2), 1.0, steps)
        la = lk.Laplace(model, likelihood, "full", prior=1.0).fit((x, y))
        for row, how in enumerate(("linearised", "weights")):
            generator = torch.Generator().manual_seed(0)
            points = torch.cat([GRID, new])
            p = la.predict(points, how=how, samples=200, generator=generator)
            score = p.log_likelihood(torch.cat([torch.zeros_like(GRID), target]))[len(GRID) :]
            inside = ((target - p.mean[len(GRID) :]).square()
                      < 4 * (p.variance + p.noise)[len(GRID) :]).double().mean()  # fmt: skip
            rows.append([f"{name}, {how}", f"{float(score.mean()):.2f}", f"{float(inside):.3f}"])
            ax = axes[row][column]
            band = la.predict(GRID, how=how, samples=200, generator=generator)
            plot_bands(GRID, band, ax)
            ax.plot(x, y, "k.")
            ax.set(title=rows[-1][0], ylim=(-4, 4))
    return table(["regression", "log-likelihood of new points", "inside 2σ"], rows)


def classes(axes: Any, steps: int) -> str:
    """Two half-moons: confidence at the data and far from them."""
    generator = torch.Generator().manual_seed(0)
    angle = math.pi * torch.rand(100, generator=generator, dtype=torch.float64)
    y = (torch.arange(100) % 2).long()
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    x = torch.where(y.unsqueeze(1) == 0, upper, lower)
    x = x + 0.1 * torch.randn(100, 2, generator=generator, dtype=torch.float64)
    model = perceptron(2, 20, 20, 2, activation=nn.ReLU)
    to_optimum(model, lambda: F.cross_entropy(model(x), y, reduction="sum"), 0.1, steps)
    la = lk.Laplace(model, "classification", "full", prior=0.1).fit((x, y))
    side = torch.linspace(-6, 7, 40, dtype=torch.float64)
    plane = torch.cartesian_prod(side, side)
    turn = torch.linspace(0, 2 * math.pi, 101, dtype=torch.float64)[:-1]
    far = 10 * torch.stack([turn.cos(), turn.sin()], 1)
    ways = {
        "MAP": lambda points: model(points).detach().softmax(1),
        "Laplace": lambda points: la.predict(points).probabilities,
    }
    rows = []
    for ax, (name, way) in zip(axes, ways.items(), strict=True):
        confidence = [float(way(points).max(1).values.mean()) for points in (x, far)]
        right = float((way(x).argmax(1) == y).double().mean())
        rows.append([name, f"{right:.2f}", *(f"{value:.3f}" for value in confidence)])
        image = way(plane)[:, 1].reshape(40, 40).T
        ax.imshow(image, origin="lower", extent=(-6, 7, -6, 7), cmap="RdBu", vmin=0, vmax=1)
        ax.scatter(x[:, 0], x[:, 1], c=y, cmap="coolwarm", s=5)
        ax.set(title=f"{name}: probability of class 1")
    head = ["two classes", "accuracy", "confidence at the data", "at distance 10"]
    return table(head, rows)


def mackay(ax: Any, steps: int) -> str:
    """α, β and γ by turns of training and fixed point, for growing networks."""
    x, y = wave(40, 0.0, 3)
    new = torch.linspace(-2, 2, 200, dtype=torch.float64).unsqueeze(1)
    truth = (2 * new).sin()
    rows = []
    for hidden in (2, 6, 20):
        torch.manual_seed(hidden)
        model = perceptron(1, hidden, 1)
        alpha, variance = 0.1, 0.25
        la = None
        for _ in range(4):
            to_optimum(
                model, lambda v=variance, m=model: (m(x) - y).square().sum() / (2 * v), alpha, steps
            )
            la = lk.Laplace(model, lk.likelihoods.Gaussian(variance), "full", prior=alpha)
            la.fit((x, y)).tune(by="mackay")
            alpha = float(la.prior.values[""])
            variance = float(la.likelihood.variance)  # pyright: ignore
        assert la is not None
        gamma = la.posterior.effective(la.prior.groups)[""]
        p = la.predict(new)
        error, promised = float((p.mean - truth).square().mean().sqrt()), float(p.std.mean())
        size = sum(q.numel() for q in model.parameters())
        numbers = [f"{alpha:.3f}", f"{variance**0.5:.3f}", f"{gamma:.1f} of {size}"]
        evidence = float(la.log_evidence())
        rows.append(
            [f"1-{hidden}-1", *numbers, f"{evidence:.1f}", f"{error:.3f}", f"{promised:.3f}"]
        )
        if hidden == 6:
            plot_bands(GRID, la.predict(GRID), ax)
            ax.plot(x, y, "k.")
            ax.set(title="1-6-1 tuned by MacKay", ylim=(-4, 4))
    head = ["network", "α", "noise (0.15)", "γ", "log evidence", "error of f", "mean σ of f"]
    return table(head, rows)


def in_between(axes: Any, steps: int, quick: bool) -> str:
    """σ in the gap over σ at the data, of posteriors over all and over few weights."""
    x, y = wave(60, 1.0, 2)
    torch.manual_seed(0)
    model = perceptron(1, *((10, 10) if quick else (50, 50)), 1)
    to_optimum(model, lambda: (model(x) - y).square().sum() / (2 * NOISE**2), 1.0, steps)
    size = sum(p.numel() for p in model.parameters())
    cases: dict[str, dict[str, Any]] = {
        "full": {"structure": "full"},
        "Kronecker": {"structure": "kron", "method": "exact"},
        "diagonal": {"structure": "diag"},
    }
    for share in (0.5, 0.03, 0.01):
        count = max(round(share * size), 2)
        cases[f"subnetwork of {share:.0%}"] = {"structure": "subnetwork", "size": count}
    inside = torch.linspace(-0.5, 0.5, 11, dtype=torch.float64).unsqueeze(1)
    new, target = wave(400, 1.0, 5)
    middle, truth = wave(400, 0.0, 6)
    middle, truth = middle[middle.abs() < 1].unsqueeze(1), truth[middle.abs() < 1].unsqueeze(1)
    rows, pictures = [], iter(axes)
    for name, settings in cases.items():
        la = lk.Laplace(model, lk.likelihoods.Gaussian(NOISE**2), prior=1.0, **settings)
        la.fit((x, y))
        ratio = float(la.predict(inside).std.mean() / la.predict(x).std.mean())
        scores = [
            float(la.predict(points).log_likelihood(values).mean())
            for points, values in ((new, target), (middle, truth))
        ]
        rows.append([name, f"{ratio:.1f}", *(f"{value:.2f}" for value in scores)])
        if name != "subnetwork of 50%" and name != "Kronecker":
            ax = next(pictures)
            plot_bands(GRID, la.predict(GRID), ax)
            ax.plot(x, y, "k.")
            ax.set(title=name, ylim=(-4, 4))
    head = ["in between", "σ in the gap / at the data", "log-likelihood at the data", "in the gap"]
    return f"{table(head, rows)}\n\n{size} weights; prior and noise are the same for all."


def main() -> None:
    """All four."""
    arguments = options(__doc__).parse_args()
    steps = 30 if arguments.quick else 2000
    from matplotlib import pyplot

    torch.manual_seed(arguments.seed)
    figure, axes = pyplot.subplots(3, 4, figsize=(17, 11))
    panels = [
        regression(axes[:2, :2], steps),
        classes(axes[0, 2:], steps),
        mackay(axes[1, 2], steps),
        in_between(axes[2], steps, arguments.quick),
    ]
    axes[1, 3].set_axis_off()
    figure.tight_layout()
    show("toy_uncertainty", "\n\n".join(panels), figure, arguments.out)


if __name__ == "__main__":
    main()
