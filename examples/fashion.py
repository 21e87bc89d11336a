"""Does linearising help? MAP, sampled and linearised Laplace of a small CNN.

Trained on Fashion-MNIST, with MNIST as what lies outside; without files on the digits 0 to 6 of
scikit-learn, with 7, 8 and 9 outside. There is a network for each of some prior precisions, and its
Kronecker posterior has the precision of each layer that the evidence prefers. The methods are
compared on one network, and each on the network of its own lowest validated NLL.

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
METHODS = (MAP, SAMPLED, LINEARISED)
ONE, OWN = "one network", "each its own"
# Prior precision in training over the number of images: 10, 20 and 40 for 20,000.
DECAYS = (5e-4, 1e-3, 2e-3)


@dataclass
class Images:
    """Images [N, 1, H, W] and labels: to train, to choose a network, to test; and others."""

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
        counts = (20000, 4000, 10000)
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
        *(nn.Conv2d(1, 8, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(288, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, classes)),
    )


def lay_out(model: nn.Module, layout: torch.memory_format) -> None:
    """Weights of convolutions in this order in memory."""
    for p in model.parameters():
        if p.dim() == 4:
            p.data = p.data.to(memory_format=layout)


def train(model: nn.Module, x: Tensor, y: Tensor, decay: float, epochs: int) -> None:
    """Maximum a posteriori under Gaussians of precision decay · N, with batches of 100."""

    def loss() -> Tensor:
        i = torch.randint(len(x), (100,))
        penalty = sum(p.square().sum() for p in model.parameters())
        return nn.functional.cross_entropy(model(x[i]), y[i]) + decay / 2 * penalty

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


def approximated(images: Images, decay: float, seed: int, epochs: int) -> lk.Laplace:
    """A trained network with its posterior, whose prior has the largest evidence."""
    torch.manual_seed(seed)
    model = network(int(images.train[1].max()) + 1)
    train(model, *images.train, decay, epochs)
    la = lk.Laplace(model.eval(), "classification", structure="kron", prior="layer", seed=seed)
    return la.fit(batches(*images.train)).tune()


def assess(la: lk.Laplace, method: str, images: Images) -> tuple[list[float], Calibration]:
    """Accuracy, NLL, ECE and AUROC on the test images; and confidence against accuracy."""
    x, y = images.test
    p = probabilities(la, method, torch.cat([x, images.outside]))
    entropy = -torch.special.xlogy(p, p).sum(1)
    outside = torch.cat([torch.zeros(len(x)), torch.ones(len(images.outside))])
    auroc = float(roc_auc_score(outside, entropy))
    p = p[: len(x)]
    curve = calibration(p, y)
    accuracy = float((p.argmax(1) == y).double().mean())
    return [accuracy, -float(log_likelihood(p, y).mean()), curve.expected_error, auroc], curve


Found = dict[tuple[str, str], tuple[list[float], Calibration]]


def run(images: Images, seed: int, epochs: int) -> Found:
    """Train a network for each precision, and assess the methods on one and on their own."""
    networks = {decay: approximated(images, decay, seed, epochs) for decay in DECAYS}
    x, y = images.validation
    found: Found = {}
    for method in METHODS:
        validated = {
            decay: -float(log_likelihood(probabilities(la, method, x), y).mean())
            for decay, la in networks.items()
        }
        own = min(DECAYS, key=lambda decay: validated[decay])
        print(f"seed {seed}, {method}: validated", *(f"{nll:.4f}" for nll in validated.values()))
        assessed = {k: assess(networks[k], method, images) for k in {DECAYS[0], own}}
        for choice, decay in ((ONE, DECAYS[0]), (OWN, own)):
            found[choice, method] = assessed[decay]
            figures = " ".join(f"{figure:.4f}" for figure in assessed[decay][0])
            print(f"  {choice}, precision {decay * len(images.train[0]):g}: {figures}", flush=True)
    return found


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
    epochs, seeds = (1, 1) if chosen.quick else (40, 3)
    runs = [run(images, chosen.seed + number, epochs) for number in range(seeds)]
    header = ["network", "method", "accuracy ↑", "NLL ↓", "ECE ↓", "AUROC outside ↑"]
    rows = [
        [
            choice if method == MAP else "",
            method,
            *(spread(column) for column in zip(*(r[choice, method][0] for r in runs), strict=True)),
        ]
        for choice in (ONE, OWN)
        for method in METHODS
    ]
    curves = {method: runs[0][ONE, method][1] for method in METHODS}
    show("fashion", table(header, rows), draw(curves), chosen.out)


if __name__ == "__main__":
    main()
