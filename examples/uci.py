"""Regression on standard and gap splits: linearised against sampled Laplace.

A standard split keeps a random tenth for testing. A gap split tests on the middle third along one
input and trains on both ends: a model should notice that it has to interpolate. Prior and noise
come from the evidence while the network is trained, as MacKay did. (After Foong et al., In-between
uncertainty in Bayesian neural networks, 2019.) Without a file: scikit-learn's diabetes data.

    python examples/uci.py --data uci.npz --out results
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from common import options, show, spread, table
from matplotlib import pyplot
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import OnlineEvidence

METHODS = ("MAP", "sampled", "linearised")
LARGEST = 1000
DRAWS = 100


def load(data: Path | None) -> dict[str, Tensor]:
    """Tables by name, the target in the last column; at most ``LARGEST`` rows of each, mixed."""
    if data is None:
        x, y = load_diabetes(return_X_y=True)
        found = {"diabetes": np.column_stack([x, y])}
    else:
        found = dict(np.load(data))
    generator = torch.Generator().manual_seed(0)
    tables = {name: torch.tensor(rows).double() for name, rows in sorted(found.items())}
    return {
        name: rows[torch.randperm(len(rows), generator=generator)[:LARGEST]]
        for name, rows in tables.items()
    }


def standard_splits(rows: Tensor, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Training and test rows: random tenths for testing."""
    for number in range(count):
        generator = torch.Generator().manual_seed(seed + number)
        mixed = rows[torch.randperm(len(rows), generator=generator)]
        yield mixed[len(rows) // 10 :], mixed[: len(rows) // 10]


def gap_splits(rows: Tensor, count: int, _: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same without a draw: middle thirds along the first inputs for testing."""
    third = len(rows) // 3
    for column in rows.T[:-1][:count]:
        ordered = rows[column.argsort()]
        yield torch.cat([ordered[:third], ordered[-third:]]), ordered[third:-third]


def fitted(x: Tensor, y: Tensor, steps: int) -> lk.Laplace:
    """A network with 50 hidden units, trained while the evidence chooses prior and noise."""
    model = nn.Sequential(nn.Linear(x.shape[1], 50), nn.Tanh(), nn.Linear(50, 1)).double()
    online = OnlineEvidence(
        model, "regression", "full", prior=1.0, every=steps // 5, burn_in=steps // 5
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        online.loss(model(x), y, num_data=len(x)).backward()
        optimizer.step()
        online.end_epoch((x, y))
    return lk.Laplace(model, online.likelihood, "full", prior=online.prior).fit((x, y))


def evaluate(train: Tensor, test: Tensor, steps: int, seed: int) -> dict[str, float]:
    """Mean log-likelihood of the test targets under each method, in the target's own units."""
    centre, width = train.mean(0), train.std(0).clamp_min(1e-9)
    (x, y), (x_new, y_new) = (
        ((rows - centre) / width).split([train.shape[1] - 1, 1], 1) for rows in (train, test)
    )
    torch.manual_seed(seed)
    la = fitted(x, y, steps)
    linearised = la.predict(x_new)
    drawn = torch.vmap(lambda theta: torch.func.functional_call(la.model, theta, x_new))(
        la.sample(DRAWS, torch.Generator().manual_seed(0))
    )
    noise = torch.distributions.Normal(0, linearised.noise.sqrt())
    found = {
        "MAP": noise.log_prob(y_new - linearised.mean),
        "sampled": noise.log_prob(y_new - drawn).logsumexp(0) - math.log(DRAWS),
        "linearised": linearised.log_likelihood(y_new),
    }
    return {method: float(ll.mean() - width[-1].log()) for method, ll in found.items()}


def draw(scores: dict[str, dict[str, dict[str, list[float]]]]) -> pyplot.Figure:
    """Log-likelihoods minus those of the linearised model, by kind of split."""
    figure, axes = pyplot.subplots(1, len(scores), figsize=(9, 4), sharey=True)
    for ax, (kind, by_name) in zip(axes, scores.items(), strict=True):
        for method, marker in zip(METHODS, "xos", strict=True):
            values = [
                fmean(found[method]) - fmean(found["linearised"]) for found in by_name.values()
            ]
            ax.plot(values, list(by_name), marker, label=method)
        ax.set(title=f"{kind} splits", xlabel="log-likelihood above the linearised one's")
        ax.set_xscale("symlog", linthresh=0.1)
    axes[0].legend()
    figure.tight_layout()
    return figure


def main() -> None:
    """All tables, both kinds of split."""
    chosen = options(__doc__, data="tables as .npz, the target in the last column").parse_args()
    steps, count = (50, 2) if chosen.quick else (600, 5)
    scores: dict[str, dict[str, dict[str, list[float]]]] = {"standard": {}, "gap": {}}
    rows = []
    for name, data in load(chosen.data).items():
        for kind, splits in (("standard", standard_splits), ("gap", gap_splits)):
            found = [
                evaluate(*split, steps, chosen.seed) for split in splits(data, count, chosen.seed)
            ]
            by_method = {method: [one[method] for one in found] for method in METHODS}
            scores[kind][name] = by_method
            rows.append([name, kind, *(spread(values, 2) for values in by_method.values())])
            print(*rows[-1], flush=True)
    header = ["data", "split", *METHODS]
    show("uci", table(header, rows), draw(scores), chosen.out)


if __name__ == "__main__":
    main()
