"""Classes from few labels, by neighbours among stochastic embeddings.

Figure 12 of Laplacian autoencoders (Miani et al., 2022): accuracy against labels per class, of
autoencoders that were trained without labels.

    python examples/autoencoders/few_labels.py --data mnist.npz --out results
"""

from __future__ import annotations

from collections.abc import Sequence

import models
import report
import torch
from data import Images, load

from lapkernels.autoencoder import StochasticAutoencoder, classify

KINDS = ("AE", "VAE", "MC-AE", "LAE (post-hoc)", "LAE (online)")
COUNTS = (1, 2, 5, 10, 20, 50)
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
    repeats = 1 if type(model).__name__ == "PlainAutoencoder" else 100
    found = classify(model, x[picked], images.new_y[picked], x[rest], repeats=repeats)
    return float((found == images.new_y[rest]).double().mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments)
    repeats = 1 if chosen.quick else REPEATS
    with report.timed():
        images = load(chosen.data, 300 if chosen.quick else 2000, 120 if chosen.quick else 1000)
        # At most half of the new images are labelled.
        counts = [count for count in COUNTS if 20 * count <= len(images.new_x)]
        recipe = models.dense(2 if chosen.quick else 12, method="approx", **models.ONLINE)
        figure, axes = report.new_figure(1, 1, (5, 3.5))
        rows = [["model", *(f"{count} a class" for count in counts)]]
        for kind in KINDS:
            model = models.KINDS[kind](recipe, images, 0)
            found = [
                [accuracy(model, images, count, seed) for seed in range(repeats)]
                for count in counts
            ]
            rows.append([kind, *(report.spread(values) for values in found)])
            axes[0, 0].plot(counts, [sum(v) / len(v) for v in found], "o-", label=kind)
        axes[0, 0].set(xscale="log", xlabel="labels a class", ylabel="accuracy")
        axes[0, 0].legend(fontsize=7)
        print(f"{images.source}, {len(images.x)} images, {repeats} choices of labels, one training")
        report.save(chosen.out, "few_labels", report.table(rows), figure)


if __name__ == "__main__":
    main()
