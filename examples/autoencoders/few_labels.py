"""Classes from few labels, by neighbours among stochastic embeddings.

Figure 12 of Laplacian autoencoders (Miani et al., 2022): accuracy against labels per class, of
autoencoders that were trained without labels.

    python examples/autoencoders/few_labels.py --data mnist.npz --out results
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import models
import report
import torch
from data import Images, load
from pictures import PALETTE

from lapkernels.autoencoder import StochasticAutoencoder, classify

KINDS = ("AE", "VAE", "MC-AE", "LAE (post-hoc)", "LAE (online)")
COUNTS = (1, 2, 5, 10, 20, 50, 100)
REPEATS = 5


def accuracy(model: StochasticAutoencoder, images: Images, count: int, seed: int) -> float:
    """With ``count`` labels a class of new images, on the rest of them."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images.new_x), generator=generator)
    y = images.new_y[order]
    picked = torch.cat([order[y == c][:count] for c in range(10)])
    rest = torch.ones(len(order), dtype=torch.bool)
    rest[picked] = False
    x = images.new_x
    repeats = 1 if type(model).__name__ == "PlainAutoencoder" else 50
    found = classify(model, x[picked], images.new_y[picked], x[rest][:1000], repeats=repeats)
    return float((found == images.new_y[rest][:1000]).double().mean())


def run(
    kind: str, recipe: models.Recipe, images: Images, counts: list[int], repeats: int, seed: int
) -> list[float]:
    """Accuracy by the number of labels, on average over choices of them."""
    model = models.KINDS[kind](recipe, images, seed)
    found = [
        fmean(accuracy(model, images, count, repeat) for repeat in range(repeats))
        for count in counts
    ]
    print(kind, seed, [round(value, 3) for value in found], flush=True)
    return found


def draw(found: dict[str, list[list[float]]], counts: list[int]) -> Any:
    """Curves of accuracy with the spread over trainings."""
    figure, axes = report.new_figure(1, 1, (6.4, 4.2))
    ax = axes[0, 0]
    for color, (kind, runs) in zip(PALETTE, found.items(), strict=False):
        columns = list(zip(*runs, strict=True))
        means = [fmean(column) for column in columns]
        spreads = [stdev(column) if len(column) > 1 else 0.0 for column in columns]
        ax.errorbar(counts, means, spreads, fmt="o-", capsize=3, color=color, label=kind)
    ax.set(xscale="log", xlabel="labels a class", ylabel="accuracy")
    ax.set_xticks(counts, [str(count) for count in counts], minor=False)
    ax.minorticks_off()
    ax.legend(loc="lower right")
    report.claim(figure, "Drawn embeddings do not help here: plain ones are ahead")
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments)
    repeats, seeds = (1, 1) if chosen.quick else (REPEATS, chosen.seeds)
    with report.timed():
        images = load(chosen.data, 300 if chosen.quick else 5500, 120 if chosen.quick else 3000)
        # At most half of the new images are labelled.
        counts = [count for count in COUNTS if 20 * count <= len(images.new_x)]
        recipe = models.dense(2 if chosen.quick else 15)
        kept = report.results(chosen, "few_labels")
        found: dict[str, list[list[float]]] = {}
        for kind in KINDS:
            for seed in range(seeds):
                key = f"{kind}, {images.source}, {len(images.x)} images, seed {seed}"
                one = report.once(
                    kept, key, lambda k=kind, s=seed: run(k, recipe, images, counts, repeats, s)
                )
                found.setdefault(kind, []).append(one)
        rows = [["model", *(f"{count} a class" for count in counts)]]
        for kind, runs in found.items():
            rows.append([kind, *(report.spread(column) for column in zip(*runs, strict=True))])
        print(
            f"{images.source}, {len(images.x)} images, {repeats} choices of labels, {seeds} seeds"
        )
        report.save(chosen.out, "few_labels", report.table(rows), draw(found, counts))


if __name__ == "__main__":
    main()
