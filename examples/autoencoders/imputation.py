"""Images of which the upper half is missing, filled in, and what a classifier makes of them.

Figure 11 and Table 3 of Laplacian autoencoders (Miani et al., 2022). A classifier sees every
reconstruction of an input, and its probabilities are averaged: how well they are calibrated says
whether the reconstructions show all that the missing half may have been. ECE, MCE and RMSCE are of
the class with the largest probability, in 15 bins. In the last column the observed pixels are put
back before the classifier sees them.

    python examples/autoencoders/imputation.py --data mnist.npz --out results
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import models
import report
import torch
from data import Images, load
from torch import Tensor, nn

from lapkernels.autoencoder import generate, impute
from lapkernels.laplace import calibration

KINDS = ("LAE (online)", "LAE (post-hoc)", "VAE", "MC-AE", "AE ensemble")
MODES = 5


def classifier(images: Images, epochs: int) -> nn.Module:
    """Two linear layers that read whole images."""
    torch.manual_seed(0)
    features = images.side**2
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(images.x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.x[part]), images.y[part]).backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def probabilities(model: nn.Module, filled: Tensor) -> Tensor:
    """Of classes [N, 10], on average over images [S, N, ...]."""
    return model(filled.flatten(0, 1)).softmax(1).unflatten(0, filled.shape[:2]).mean(0)


def scores(model: nn.Module, filled: Tensor, x: Tensor, y: Tensor, observed: Tensor) -> list[float]:
    """Of reconstructions [S, N, ...]: squared error of their mean, accuracy, and calibration."""
    error = float((filled.mean(0) - x).square().flatten(1).sum(1).mean())
    p = probabilities(model, filled)
    found = calibration(p, y)
    kept = calibration(probabilities(model, torch.where(observed, x, filled)), y)
    return [
        *(error, float((p.argmax(1) == y).double().mean())),
        *(found.ece, found.mce, found.rmsce),
        kept.ece,
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    chosen = report.options(__doc__ or "", arguments)
    seeds = 1 if chosen.quick else chosen.seeds
    with report.timed():
        images = load(chosen.data, 300 if chosen.quick else 5500, 1000)
        recipe = models.dense(2 if chosen.quick else 15, latent=8)
        kept = report.results(chosen, "imputation")
        judge = classifier(images, 3 if chosen.quick else 10)
        x, y = images.new_x, images.new_y
        observed = torch.zeros(1, images.side, images.side, dtype=torch.bool)
        observed[:, images.side // 2 :] = True
        figure, axes = report.new_figure(len(KINDS), 12, (12, 1.2 * len(KINDS)))
        head = ["model", "squared error", "accuracy", "ECE", "MCE", "RMSCE", "ECE, observed"]
        noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
        masked = torch.where(observed, x, noise).unsqueeze(0)
        alone = scores(judge, masked, x, y, observed)
        rows = [head, ["classifier alone", *(f"{value:.3f}" for value in alone)]]
        for row, kind in zip(axes, KINDS, strict=True):
            found = []
            for seed in range(seeds):

                def run(kind: str = kind, seed: int = seed) -> dict[str, Any]:
                    model = models.KINDS[kind](recipe, images, seed)
                    filled = impute(model, x, observed, modes=MODES, keep=False)
                    values = scores(judge, filled, x, y, observed)
                    print(kind, seed, [round(value, 3) for value in values], flush=True)
                    made = generate(model, x.shape[1:], 5)
                    shown = torch.cat([filled[:, 0], made]) if seed == 0 else made[:0]
                    return {"scores": values, "pictures": report.rounded(shown[:, 0], 2)}

                key = f"{kind}, {images.source}, {len(images.x)} images, seed {seed}"
                one = report.once(kept, key, run)
                found.append(one["scores"])
                if seed == 0:
                    shown = torch.tensor(one["pictures"]).unsqueeze(1)
                    draw(row, kind, x[0], observed, shown[:MODES], shown[MODES:])
            rows.append(
                [kind, *(report.spread([one[k] for one in found]) for k in range(len(head) - 1))]
            )
        for index, title in ((0, "input"), (1, "seen"), (2, "filled in"), (7, "generated")):
            axes[0, index].set_title(title)
        report.claim(figure, "The lower half is seen; drawn networks fill in the upper")
        print(f"{images.source}, {len(images.x)} images, {seeds} seeds, {MODES} images an input")
        report.save(chosen.out, "imputation", report.table(rows), figure)


def draw(
    row: Sequence[object], kind: str, x: Tensor, observed: Tensor, filled: Tensor, made: Tensor
) -> None:
    """The image, what is seen of it, five that fill it in, and five out of noise."""
    pictures = [x, x * observed, *filled, *made]
    for index, picture in enumerate(pictures):
        report.show(row[index], picture, left=kind if index == 0 else "", vmin=0, vmax=1)


if __name__ == "__main__":
    main()
