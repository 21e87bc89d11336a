"""Has the posterior arrived? The bound over epochs for several learning rates of log σ.

The spreads of a mean-field posterior start at exp(-3) of the prior's, and Adam moves log σ by its
learning rate at the most, so with the rate of the weights training ends before they arrive. Lines
are multipliers 1, 3, 10 and 30 of that rate, for variational inference and Variational Laplace,
untempered and tempered; the last panels put Variational Laplace's difference route beside the exact
one. Fashion-MNIST, or without a file scikit-learn's digits. Finished runs are kept in --out.

    python examples/variational_bound.py --data fashion_mnist.npz --out results
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from common import options, show, table
from matplotlib import pyplot
from residual import Labelled, Scores, load, network, train

import lapkernels as lk

MULTIPLIERS = (1, 3, 10, 30)
BETAS = (1.0, 0.1)
VI, VL, DIFFERENCE = "VI", "VL", "VL, difference"
# Small, so that the spreads need several times what the weights need.
RATE, BATCH = 2e-3, 50


def run(
    method: str, beta: float, multiplier: int, images: Labelled, tested: Labelled, epochs: int
) -> dict[str, Any]:
    """Train once: bound / N after each epoch, the last spreads, test scores."""
    torch.manual_seed(0)
    x, y = images
    model = network(x.shape[1], x.shape[2])
    generator = torch.Generator().manual_seed(0)
    q = (
        lk.VariationalInference(model, "categorical", len(x), beta=beta, generator=generator)
        if method == VI
        else lk.VariationalLaplace(
            model, "categorical", len(x), beta=beta, generator=generator,
            route="difference" if method == DIFFERENCE else "exact",
        )
    )  # fmt: skip
    losses = train(q, q.param_groups(RATE, multiplier), images, epochs, BATCH, seed=0)
    with torch.no_grad():
        scores = Scores.of(q(tested[0]).softmax(1), tested[1])
        away = torch.cat([
            (log_std - torch.tensor(q.prior_std[name]).log()).flatten()
            for name, log_std in zip(q.names, q.log_std, strict=True)
        ])  # fmt: skip
    return {
        "bound": [-loss for loss in losses],
        "log σ/s": float(away.mean()),
        "nll": scores.nll,
        "accuracy": scores.accuracy,
    }


def draw(found: Mapping[tuple[str, float, int], dict[str, Any]]) -> pyplot.Figure:
    """Bounds over epochs: a row for each β; VI, VL, and both routes of VL."""
    figure, axes = pyplot.subplots(len(BETAS), 3, figsize=(12, 6.4), sharex=True, squeeze=False)
    for line, beta in zip(axes, BETAS, strict=True):
        for ax, method in zip(line, (VI, VL), strict=False):
            for shade, multiplier in enumerate(MULTIPLIERS):
                bound = found[method, beta, multiplier]["bound"]
                ax.plot(bound, color="tab:blue", alpha=(shade + 1) / 4, label=f"× {multiplier}")
            ax.set(title=f"{method}, β = {beta:g}", ylabel="bound / N")
        for method, style in ((VL, "-"), (DIFFERENCE, "--")):
            line[2].plot(found[method, beta, 10]["bound"], style, label=f"{method}, × 10")
        line[2].set(title=f"two routes, β = {beta:g}")
        for ax in line:
            last = found[VL, beta, 1]["bound"]
            ax.set_ylim(min(last[1:]), None)
            ax.legend(fontsize=8)
    for ax in axes[-1]:
        ax.set_xlabel("epoch")
    figure.tight_layout()
    return figure


def main() -> None:
    """All runs, one table."""
    chosen = options(__doc__, data="Fashion-MNIST as .npz").parse_args()
    images, tested = load(chosen.data, *((100, 100) if chosen.quick else (1000, 2000)))
    epochs = 2 if chosen.quick else 15
    kept: Path | None = chosen.out and chosen.out / "variational_bound.json"
    known = json.loads(kept.read_text()) if kept and kept.exists() else {}
    found = {}
    for beta in BETAS:
        for method in (VI, VL, DIFFERENCE):
            for multiplier in (10,) if method == DIFFERENCE else MULTIPLIERS:
                key = f"{method} {beta} {multiplier}"
                if key not in known:
                    known[key] = run(method, beta, multiplier, images, tested, epochs)
                    if kept:
                        kept.parent.mkdir(parents=True, exist_ok=True)
                        kept.write_text(json.dumps(known, indent=1))
                found[method, beta, multiplier] = known[key]
    rows = [
        [method, f"{beta:g}", str(multiplier), f"{one['bound'][-1]:.3f}", f"{one['log σ/s']:.2f}",
         f"{one['nll']:.3f}", f"{one['accuracy']:.3f}"]
        for (method, beta, multiplier), one in found.items()
    ]  # fmt: skip
    header = ["method", "β", "multiplier", "bound / N ↑", "mean log σ/s", "NLL ↓", "accuracy ↑"]
    show("variational_bound", table(header, rows), draw(found), chosen.out)


if __name__ == "__main__":
    main()
