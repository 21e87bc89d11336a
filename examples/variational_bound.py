"""Has the posterior arrived? The bound over epochs for several learning rates of log σ.

The spreads of a mean-field posterior start at exp(-3) of the prior's, and Adam moves log σ by its
learning rate at the most, so with the rate of the weights training ends before they arrive. Lines
are multipliers 1, 3, 10 and 30 of that rate, for variational inference and Variational Laplace,
untempered and tempered. A second figure has the curves of Variational Laplace by its difference
route beside those of the exact one. Fashion-MNIST, or without a file scikit-learn's digits.
Finished runs are kept in --out.

    python examples/variational_bound.py --data fashion_mnist.npz --out results
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from common import once, options, show, table
from matplotlib import pyplot
from residual import Labelled, Scores, load, mean_log_ratio, network, train

import lapkernels as lk

MULTIPLIERS = (1, 3, 10, 30)
BETAS = (1.0, 0.1)
VI, EXACT, DIFFERENCE = "VI", "VL", "VL, difference"
# Small, so that the spreads need several times what the weights need.
RATE, BATCH = 2e-3, 50
# Seeds of the labels that Variational Laplace draws, at multiplier 10: how far curves differ by
# chance, as a scale for how far the routes do.
DRAWS = (0, 1, 2)
# Method, β, multiplier, seed of drawn labels; and curves and scores by name.
Key = tuple[str, float, int, int]
Run = dict[str, Any]


def run(key: Key, images: Labelled, tested: Labelled, epochs: int) -> Run:
    """Train once: bound / N and mean log σ/s after each epoch, scores of the network of means."""
    method, beta, multiplier, draws = key
    torch.manual_seed(0)
    x = images[0]
    model = network(x.shape[1], x.shape[2])
    shared = {"beta": beta, "generator": torch.Generator().manual_seed(draws)}
    if method == VI:
        q = lk.VariationalInference(model, "categorical", len(x), **shared)
    else:
        route = "difference" if method == DIFFERENCE else "exact"
        q = lk.VariationalLaplace(model, "categorical", len(x), route=route, **shared)
    found: Run = {"bound": [], "log σ/s": []}

    def after(loss: float) -> None:
        found["bound"].append(-loss)
        found["log σ/s"].append(mean_log_ratio(q))

    train(q, q.param_groups(RATE, multiplier), images, epochs, BATCH, 0, after)
    with torch.no_grad():
        scores = Scores.of(q(tested[0]).softmax(1), tested[1])
    return {**found, "nll": scores.nll, "accuracy": scores.accuracy}


def draw(found: Mapping[Key, Run]) -> pyplot.Figure:
    """A row for each β: bounds over epochs, then what is left of them over multipliers."""
    figure, axes = pyplot.subplots(len(BETAS), 5, figsize=(15, 5.6), squeeze=False)
    ends = {"test NLL": "nll", "test accuracy": "accuracy", "bound / N": "bound"}
    for line, beta in zip(axes, BETAS, strict=True):
        for ax, method in zip(line, (VI, EXACT), strict=False):
            for shade, multiplier in enumerate(MULTIPLIERS):
                bound = found[method, beta, multiplier, 0]["bound"]
                ax.plot(
                    range(1, len(bound) + 1), bound, color="tab:blue", alpha=(shade + 1) / 4,
                    label=f"× {multiplier}",
                )  # fmt: skip
            ax.set(title=f"{method}, β = {beta:g}", xlabel="epoch", ylabel="bound / N")
            ax.legend(fontsize=7)
        for ax, (label, name) in zip(line[2:], ends.items(), strict=True):
            for method in (VI, EXACT):
                last = [found[method, beta, multiplier, 0][name] for multiplier in MULTIPLIERS]
                ax.plot(
                    MULTIPLIERS, [one[-1] if name == "bound" else one for one in last], "o-",
                    label=method,
                )  # fmt: skip
            ax.set(xscale="log", xlabel="multiplier", ylabel=label, title=f"last, β = {beta:g}")
            ax.legend(fontsize=7)
    figure.tight_layout()
    return figure


def draw_routes(found: Mapping[Key, Run]) -> pyplot.Figure:
    """Bound and spread over epochs by both routes, and how far they are from each other."""
    figure, axes = pyplot.subplots(len(BETAS), 3, figsize=(11, 5.6), squeeze=False)
    for line, beta in zip(axes, BETAS, strict=True):
        exact, difference = (found[method, beta, 10, 0] for method in (EXACT, DIFFERENCE))
        epochs = range(1, len(exact["bound"]) + 1)
        for ax, (name, label) in zip(
            line, (("bound", "bound / N"), ("log σ/s", "mean log σ/s")), strict=False
        ):
            for seed in DRAWS[1:]:
                ax.plot(epochs, found[EXACT, beta, 10, seed][name], color="lightgrey", linewidth=4)
            ax.plot(epochs, exact[name], label="exact")
            ax.plot(epochs, difference[name], "--", label="difference")
            ax.set(title=f"β = {beta:g}", xlabel="epoch", ylabel=label)
            ax.legend(fontsize=8)
        line[2].plot(epochs, _apart(exact, difference), label="difference, same labels")
        for seed in DRAWS[1:]:
            line[2].plot(
                epochs, _apart(exact, found[EXACT, beta, 10, seed]), color="lightgrey",
                label="exact, other labels",
            )  # fmt: skip
        line[2].set(
            title=f"β = {beta:g}", xlabel="epoch", ylabel="|bound - exact bound| / N", yscale="log"
        )
        line[2].legend(fontsize=8)
    figure.tight_layout()
    return figure


def _apart(one: Run, other: Run) -> list[float]:
    return [abs(a - b) for a, b in zip(one["bound"], other["bound"], strict=True)]


def route_rows(found: Mapping[Key, Run]) -> list[list[str]]:
    """By β: how far the curves are from the exact one, at most."""
    lines = []
    for beta in BETAS:
        exact = found[EXACT, beta, 10, 0]
        others = {
            "difference, same labels": [found[DIFFERENCE, beta, 10, 0]],
            "exact, other labels": [found[EXACT, beta, 10, seed] for seed in DRAWS[1:]],
        }
        for label, of in others.items():
            bound = max(max(_apart(exact, one)) for one in of)
            nll = max(abs(one["nll"] - exact["nll"]) for one in of)
            lines.append([f"{beta:g}", label, f"{bound:.1e}", f"{nll:.1e}"])
    return lines


def main() -> None:
    """All runs, two tables, two figures."""
    chosen = options(__doc__, data="Fashion-MNIST as .npz").parse_args()
    counts = (100, 100, 100) if chosen.quick else (1000, 0, 4000)
    images, _, tested = load(chosen.data, *counts)
    epochs = 2 if chosen.quick else 15
    keys: list[Key] = [
        *((method, beta, m, 0) for beta in BETAS for method in (VI, EXACT) for m in MULTIPLIERS),
        *((DIFFERENCE, beta, 10, 0) for beta in BETAS),
        *((EXACT, beta, 10, seed) for beta in BETAS for seed in DRAWS[1:]),
    ]
    kept = chosen.out and chosen.out / "variational_bound.json"
    found = {
        key: once(
            kept, f"{len(images[0])} {epochs} {key}", partial(run, key, images, tested, epochs)
        )
        for key in keys
    }
    rows = [
        [method, f"{beta:g}", str(multiplier), f"{one['bound'][-1]:.3f}",
         f"{one['log σ/s'][-1]:.2f}", f"{one['nll']:.3f}", f"{one['accuracy']:.3f}"]
        for (method, beta, multiplier, seed), one in found.items() if seed == 0
    ]  # fmt: skip
    header = ["method", "β", "multiplier", "bound / N ↑", "mean log σ/s", "NLL ↓", "accuracy ↑"]
    show("variational_bound", table(header, rows), draw(found), chosen.out)
    header = ["β", "against exact", "bound / N, at most", "test NLL, at most"]
    show(
        "variational_bound_routes", table(header, route_rows(found)), draw_routes(found), chosen.out
    )


if __name__ == "__main__":
    main()
