"""Evidence of networks with norms: where to evaluate it, and how many priors to tune.

A norm makes the scale of the weights before it irrelevant, so the trained weights θ̃ are no mode of
any posterior, and evidence evaluated there overestimates the uncertainty. Antorán et al. (Adapting
the linearised Laplace model evidence for modern deep learning, 2022) recommend (1) to evaluate it
at the optimum θ★ of the linearised network and (2) one precision λ for each group of normalised
weights. Both are tried on three networks that classify digits: scikit-learn's, or MNIST's shrunk to
8 x 8. Prints negative log-likelihoods of test images; lower is better.

    python examples/normalised.py --data mnist.npz --out results
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import minimise, once, options, show, spread, table
from pictures import claim, intervals
from pictures import figure as new_figure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

import lapkernels as lk

KINDS = ("CNN", "ResNet", "pre-ResNet")
WIDTH = 6
EVIDENCE = {"θ★": "linearised", "θ̃": "evidence"}


def load(data: Path | None, counts: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    """Images [N, 1, 8, 8] and labels, to train and to test."""
    if data is None:
        images, labels = load_digits(return_X_y=True)
        x = torch.tensor(images / 16).reshape(-1, 1, 8, 8)
    else:
        arrays = np.load(data)
        images, labels = arrays["x_train"][: sum(counts)], arrays["y_train"][: sum(counts)]
        x = adaptive_avg_pool2d(torch.tensor(images / 255).unsqueeze(1), 8)
    y = torch.tensor(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: sum(counts)]
    return [(x[i], y[i]) for i in order.split(counts)]


def convolution(inputs: int, stride: int = 1) -> nn.Conv2d:
    """3 x 3, without a bias, which a norm would take away again."""
    return nn.Conv2d(inputs, WIDTH, 3, stride, padding=1, bias=False)


class Residual(nn.Module):
    """x + branch(x) of two convolutions, with norms behind them or before them."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for _ in range(2):
            norm, weights = nn.BatchNorm2d(WIDTH), convolution(WIDTH)
            parts += [norm, nn.ReLU(), weights] if norm_first else [weights, norm, nn.ReLU()]
        self.branch = nn.Sequential(*(parts if norm_first else parts[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to the same shape."""
        return x + self.branch(x)


def network(kind: str) -> nn.Module:
    """A convolution, two more that are plain or a residual block, and a dense layer."""
    norm, relu = nn.BatchNorm2d(WIDTH), nn.ReLU()
    plain = Residual(norm_first=False).branch
    body = {
        "CNN": (norm, relu, *plain, relu),
        "ResNet": (norm, relu, Residual(norm_first=False), relu),
        "pre-ResNet": (Residual(norm_first=True), norm, relu),
    }[kind]
    head = (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(WIDTH * 4, 10))
    return nn.Sequential(convolution(1, 2), *body, *head).double()


def run(
    kind: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    seed: int,
    steps: int,
    tuning: int,
) -> dict[str, float]:
    """Test NLL of the trained network, and of its Laplace approximation for each method.

    The network is trained for ``steps``, and the evidence climbed for ``tuning`` steps.
    """
    torch.manual_seed(seed)
    model, (x, y) = network(kind), train
    minimise(lambda: cross_entropy(model(x), y), model.parameters(), steps, 1e-2)
    model.eval()
    with torch.no_grad():
        found = {"MAP": float(cross_entropy(model(test[0]), test[1]))}
    la = lk.Laplace(model, "classification", "full").fit(train)
    for place, by in EVIDENCE.items():
        for name, prior in (("single", 1.0), ("multiple", lk.Prior.normalised(model, x))):
            la.set_prior(prior).tune([train], by=by, steps=tuning, tolerance=1e-3)
            nll = -float(la.predict(test[0]).log_likelihood(test[1]).mean())
            found[f"evidence at {place}, {name} λ"] = nll
    print(kind, seed, *(f"{value:.3f}" for value in found.values()), flush=True)
    return found


def draw(scores: dict[str, dict[str, list[float]]]) -> Any:
    """Test NLL of each method by network, with its spread over seeds."""
    figure, axes = new_figure(1, 1, (9, 3.8))
    ax = axes[0, 0]
    found = {method: [by_kind[kind] for kind in KINDS] for method, by_kind in scores.items()}
    intervals(ax, KINDS, found)
    ax.set(ylabel="test NLL")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    claim(figure, "Networks with norms: the evidence belongs at the linearised optimum θ★")
    return figure


def main() -> None:
    """Every network, every method."""
    chosen = options(__doc__, data="MNIST as .npz").parse_args()
    train, test = load(chosen.data, (60, 100) if chosen.quick else (300, 500))
    steps, tuning, seeds = (20, 4, 1) if chosen.quick else (150, 20, 3)
    scores: dict[str, dict[str, list[float]]] = {}
    for kind in KINDS:
        for seed in range(chosen.seed, chosen.seed + seeds):
            found = once(
                None if chosen.out is None else chosen.out / "normalised.json",
                f"{kind}, {len(train[0])} images, {steps} and {tuning} steps, seed {seed}",
                lambda k=kind, s=seed: run(k, train, test, s, steps, tuning),
            )
            for method, nll in found.items():
                scores.setdefault(method, {}).setdefault(kind, []).append(nll)
    rows = [[m, *(spread(values[kind]) for kind in KINDS)] for m, values in scores.items()]
    show("normalised", table(["test NLL", *KINDS], rows), draw(scores), chosen.out)


if __name__ == "__main__":
    main()
