"""Classification with a posterior out of the optimiser: L2M of a perceptron, and ensembles of it.

Fashion-MNIST at half resolution, or without a file scikit-learn's digits. The networks are trained
by AdamW as always; L2M reads what the optimiser kept, a diagonal Laplace approximation makes a pass
over the data for the same quantity. Both choose their prior on validation images.

    python examples/l2m_images.py --data fashion_mnist.npz --out results
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import options, show, spread, table
from matplotlib import pyplot
from residual import Labelled, Scores, load
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import Calibration, calibration

BATCH, MEMBERS, DRAWS = 50, 3, 30
GRID = (1.0, 10.0, 100.0, 1000.0, 10_000.0)


def trained(images: Labelled, epochs: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A perceptron, and the optimiser that trained it."""
    x, y = images
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(x[0].numel(), 50), nn.ReLU(), nn.Linear(50, 10)
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=1e-2)
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        part = torch.randint(len(x), (BATCH,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
        schedule.step()
    return model.eval(), optimizer


def best_of_grid(la: lk.Laplace, validation: Labelled) -> None:
    """Set the precision of the grid with the largest log-likelihood of the validation data."""
    x, y = validation

    def score(precision: float) -> float:
        return float(la.set_prior(precision).predict(x).log_likelihood(y).sum())

    la.set_prior(max(GRID, key=score))


def methods(
    images: Labelled, validation: Labelled, epochs: int
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Ways to class probabilities [N, C], all of the same trained networks."""
    nets, posteriors = [], []
    for _ in range(MEMBERS):
        model, optimizer = trained(images, epochs)
        q = lk.L2M.from_optimizer(
            optimizer, model, "categorical", data_size=len(images[0]), batch_size=BATCH
        )
        best_of_grid(q, validation)
        nets.append(model)
        posteriors.append(q)
    fisher = lk.Laplace(nets[0], "categorical", "diag", "empirical").fit(images)
    best_of_grid(fisher, validation)
    first, mixture = posteriors[0], lk.Mixture(posteriors)

    def plain(model: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: model(x).detach().softmax(1)

    def drawn(x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return first.predict(x, how="weights", samples=DRAWS, generator=generator).probabilities

    return {
        "mode": plain(nets[0]),
        "L2M, linearised": lambda x: first.predict(x).probabilities,
        "L2M, sampled": drawn,
        "Laplace, empirical Fisher": lambda x: fisher.predict(x).probabilities,
        f"ensemble of {MEMBERS}": lambda x: torch.stack([plain(m)(x) for m in nets]).mean(0),
        f"ensemble of {MEMBERS} L2M": lambda x: mixture.predict(x).probabilities,
    }


def main() -> None:
    """Some seeds, one table, the first seed's calibration."""
    chosen = options(__doc__, data="Fashion-MNIST as .npz").parse_args()
    counts = (200, 100, 100) if chosen.quick else (4000, 1000, 4000)
    images, validation, (x, y) = load(chosen.data, *counts)
    scores: dict[str, list[Scores]] = {}
    curves: dict[str, Calibration] = {}
    for seed in range(chosen.seed, chosen.seed + (1 if chosen.quick else 3)):
        torch.manual_seed(seed)
        for name, predict in methods(images, validation, 2 if chosen.quick else 30).items():
            p = predict(x)
            scores.setdefault(name, []).append(Scores.of(p, y))
            curves.setdefault(name, calibration(p, y))
    rows = [
        [
            name,
            *(spread([getattr(s, metric) for s in found]) for metric in ("nll", "accuracy", "ece")),
        ]
        for name, found in scores.items()
    ]
    header = ["method", "NLL ↓", "accuracy ↑", "ECE ↓"]
    show("l2m_images", table(header, rows), draw(curves), chosen.out)


def draw(curves: dict[str, Calibration]) -> pyplot.Figure:
    """Confidence against accuracy."""
    figure, ax = pyplot.subplots(figsize=(5, 4))
    ax.plot([0, 1], [0, 1], color="black", linewidth=1)
    for name, curve in curves.items():
        held = curve.count > 0
        ax.plot(curve.confidence[held], curve.accuracy[held], ".-", label=name)
    ax.set(xlabel="confidence", ylabel="accuracy")
    ax.legend(fontsize=8)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main()
