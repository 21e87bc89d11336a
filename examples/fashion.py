"""Does linearising help? MAP, sampled and linearised Laplace of one small CNN.

Trained on Fashion-MNIST, with MNIST as what lies outside; without files on the digits 0 to 6 of
scikit-learn, with 7, 8 and 9 outside. All three predict with the same trained network, and both
Laplace approximations with the same Kronecker posterior: what differs is whether drawn weights go
through the network itself or through its linearisation.

    python examples/fashion.py --data fashion_mnist.npz --outside mnist.npz --out results
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import minimise, options, show, spread, table
from matplotlib import pyplot
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import Calibration, calibration

MAP, SAMPLED, LINEARISED = "MAP", "Laplace, sampled", "Laplace, linearised"
GRID = (20.0, 40.0, 80.0, 160.0, 320.0)


@dataclass
class Images:
    """Images [N, 1, H, W] and labels: to train, to choose the prior, to test; and others."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    outside: Tensor


def load(data: Path | None, outside: Path | None, quick: bool) -> Images:
    """From the files, or scikit-learn's digits."""
    if data is None or outside is None:
        x, y = load_digits(return_X_y=True)
        x, y = torch.tensor(x / 16).float().reshape(-1, 1, 8, 8), torch.tensor(y)
        x = nn.functional.interpolate(x, 28, mode="bilinear")
        known = y < 7
        mixed = torch.randperm(int(known.sum()), generator=torch.Generator().manual_seed(0))
        inside, labels, strange = x[known][mixed], y[known][mixed], x[~known]
        new, new_labels = inside[600:], labels[600:]
        counts = (400, 200, 500)
    else:
        first, second = np.load(data), np.load(outside)
        inside, new, strange = (
            torch.tensor(part).float().unsqueeze(1) / 255
            for part in (first["x_train"], first["x_test"], second["x_test"])
        )
        labels, new_labels = (torch.tensor(first[part]).long() for part in ("y_train", "y_test"))
        counts = (20000, 2000, 10000)
    if quick:
        counts = (200, 50, 100)
    seen, end = counts[0], counts[0] + counts[1]
    return Images(
        (inside[:seen], labels[:seen]),
        (inside[seen:end], labels[seen:end]),
        (new[: counts[2]], new_labels[: counts[2]]),
        strange[: counts[2] // 4],
    )


def network(classes: int) -> nn.Sequential:
    """Three convolutions and three dense layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes)),
    )


def lay_out(model: nn.Module, layout: torch.memory_format) -> None:
    """Weights of convolutions in this order in memory."""
    for p in model.parameters():
        if p.dim() == 4:
            p.data = p.data.to(memory_format=layout)


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    """Maximum a posteriori under Gaussians of precision 3, with batches of 100."""

    def loss() -> Tensor:
        i = torch.randint(len(x), (100,))
        penalty = sum(p.square().sum() for p in model.parameters())
        return nn.functional.cross_entropy(model(x[i]), y[i]) + 1.5 * penalty / len(x)

    # Channels last trains in about half the time on a CPU.
    lay_out(model, torch.channels_last)
    minimise(loss, model.parameters(), epochs * len(x) // 100, 2e-3)
    lay_out(model, torch.contiguous_format)


def batches(x: Tensor, *y: Tensor) -> list[tuple[Tensor, ...]]:
    """Of a hundred images."""
    return list(zip(*(part.split(100) for part in (x, *y)), strict=True))


def probabilities(la: lk.Laplace, method: str, x: Tensor) -> Tensor:
    """Predicted class probabilities, [N, C]."""
    if method == MAP:
        with torch.no_grad():
            return la.model(x).softmax(1)
    generator = torch.Generator().manual_seed(0)
    if method == SAMPLED:
        return la.predict(x, how="weights", samples=20, generator=generator).probabilities
    parts = (la.predict(p, link="mc", samples=1000, generator=generator) for (p,) in batches(x))
    return torch.cat([part.probabilities for part in parts])


def log_likelihood(p: Tensor, y: Tensor) -> Tensor:
    """Log-probability of each label."""
    return p.gather(1, y.unsqueeze(1)).log().squeeze(1)


def widest(la: lk.Laplace, x: Tensor, y: Tensor) -> float:
    """The smallest precision that is, linearised, within one standard error of the best.

    Validation data hardly tell these from each other, and a wider posterior knows better what lies
    outside.
    """
    found = {g: log_likelihood(probabilities(la.set_prior(g), LINEARISED, x), y) for g in GRID}
    best = max(found.values(), key=lambda scores: float(scores.mean()))
    least = best.mean() - best.std() / len(best) ** 0.5
    return min(g for g, scores in found.items() if scores.mean() >= least)


def run(
    images: Images, seed: int, epochs: int
) -> tuple[dict[str, list[float]], dict[str, Calibration]]:
    """Train one network, and for each method: accuracy, NLL, ECE and AUROC."""
    torch.manual_seed(seed)
    model = network(int(images.train[1].max()) + 1)
    train(model, *images.train, epochs)
    la = lk.Laplace(model.eval(), "classification", structure="kron", seed=seed)
    la.fit(batches(*images.train))
    precision = widest(la, *images.validation)
    la.set_prior(precision)
    print(f"seed {seed}: prior precision {precision:g}")
    x, y = images.test
    outside = torch.cat([torch.zeros(len(x)), torch.ones(len(images.outside))])
    scores, curves = {}, {}
    for method in (MAP, SAMPLED, LINEARISED):
        p = probabilities(la, method, torch.cat([x, images.outside]))
        entropy = -torch.special.xlogy(p, p).sum(1)
        p = p[: len(x)]
        curves[method] = calibration(p, y)
        accuracy = float((p.argmax(1) == y).double().mean())
        auroc = float(roc_auc_score(outside, entropy))
        scores[method] = [
            accuracy, -float(log_likelihood(p, y).mean()), curves[method].ece, auroc
        ]  # fmt: skip
        print(f"{method:<20}", *(f"{score:.3f}" for score in scores[method]), flush=True)
    return scores, curves


def draw(curves: dict[str, Calibration]) -> pyplot.Figure:
    """Confidence against accuracy."""
    figure, ax = pyplot.subplots(figsize=(5, 4))
    ax.plot([0, 1], [0, 1], color="black", linewidth=1)
    for method, curve in curves.items():
        held = curve.count > 0
        ax.plot(curve.confidence[held], curve.accuracy[held], "o-", label=method)
    ax.set(xlabel="confidence", ylabel="accuracy")
    ax.legend()
    figure.tight_layout()
    return figure


def main() -> None:
    """Some seeds, one table."""
    parser = options(__doc__, data="Fashion-MNIST as .npz", outside="MNIST as .npz")
    chosen = parser.parse_args()
    images = load(chosen.data, chosen.outside, chosen.quick)
    epochs, seeds = (1, 1) if chosen.quick else (30, 3)
    runs = [run(images, chosen.seed + number, epochs) for number in range(seeds)]
    header = ["", "accuracy ↑", "NLL ↓", "ECE ↓", "AUROC outside ↑"]
    rows = [
        [method, *(spread(column) for column in zip(*(r[0][method] for r in runs), strict=True))]
        for method in runs[0][0]
    ]
    show("fashion", table(header, rows), draw(runs[0][1]), chosen.out)


if __name__ == "__main__":
    main()
