"""Shepp-Logan tomography with a deep image prior: function-space Laplace against MC dropout.

A few noisy projections y = A x + noise of an image x. A small U-Net f(θ) with a fixed random input
is trained so that A f(θ) explains y. Linearised, it is a Gaussian process f ~ GP(0, J Λ⁻¹ Jᵀ) over
images, of which A f is observed; the posterior costs a matrix over measurements, of which there are
few. The same network with dropout, left on for predictions, is what it is compared with. Two more
projections, which no network sees, choose how wide the prior is, and how often to drop. (After
Antorán et al., A probabilistic deep image prior for computational tomography, 2022.)

    python examples/tomography.py --out results
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from common import minimise, options, show, spread, table
from pictures import claim, figure, image
from torch import Tensor, nn

import lapkernels as lk

SIZE, ANGLES, CHANNELS = 24, 8, 8
TV_WEIGHT = 0.1
# Chosen on the projections kept aside: standard deviation of the prior over the root mean square of
# the trained weights, and rate of dropout.
WIDTHS, RATES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0), (0.02, 0.05, 0.1, 0.2)
# Intensity, half axes, centre and angle in degrees of the phantom's ellipses (Toft's contrasts).
ELLIPSES = (
    (1.0, 0.69, 0.92, 0.0, 0.0, 0), (-0.8, 0.6624, 0.874, 0.0, -0.0184, 0),
    (-0.2, 0.11, 0.31, 0.22, 0.0, -18), (-0.2, 0.16, 0.41, -0.22, 0.0, 18),
    (0.1, 0.21, 0.25, 0.0, 0.35, 0), (0.1, 0.046, 0.046, 0.0, 0.1, 0),
    (0.1, 0.046, 0.046, 0.0, -0.1, 0), (0.1, 0.046, 0.023, -0.08, -0.605, 0),
    (0.1, 0.023, 0.023, 0.0, -0.606, 0), (0.1, 0.023, 0.046, 0.06, -0.605, 0),
)  # fmt: skip


def grid(size: int) -> tuple[Tensor, Tensor]:
    """Coordinates of the pixels in [-1, 1], each [size, size]."""
    line = (torch.arange(size, dtype=torch.float64) + 0.5) * 2 / size - 1
    down, across = torch.meshgrid(-line, line, indexing="ij")
    return across, down


def phantom(size: int, finer: int = 8) -> Tensor:
    """The Shepp-Logan phantom, averaged over each pixel, [size²]."""
    u, v = grid(size * finer)
    image = torch.zeros_like(u)
    for value, a, b, u0, v0, degrees in ELLIPSES:
        c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        along, beside = (u - u0) * c + (v - v0) * s, (v - v0) * c - (u - u0) * s
        image += value * ((along / a) ** 2 + (beside / b) ** 2 <= 1)
    return nn.functional.avg_pool2d(image[None], finer).flatten()


def radon(size: int, angles: int) -> Tensor:
    """Parallel projections [angles, size, size²], a pixel shared by two detectors."""
    u, v = (axis.flatten() for axis in grid(size))
    matrix = torch.zeros(angles, size, size**2, dtype=torch.float64)
    for number, rows in enumerate(matrix):
        angle = math.pi * number / angles
        place = ((u * math.cos(angle) + v * math.sin(angle)) + 1) * size / 2 - 0.5
        left = place.floor()
        for detector, weight in ((left, left + 1 - place), (left + 1, place - left)):
            seen = (detector >= 0) & (detector < size)
            rows[detector[seen].long(), seen.nonzero().flatten()] += weight[seen]
    return matrix * 2 / size


class UNet(nn.Module):
    """Half the resolution and back, with a skip; [N, 4, H, W] to flat images [N, H W]."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()

        def block(inputs: int, stride: int = 1) -> nn.Sequential:
            convolution = nn.Conv2d(inputs, CHANNELS, 3, stride, padding=1)
            norm = nn.GroupNorm(2, CHANNELS)
            return nn.Sequential(convolution, norm, nn.SiLU(), nn.Dropout(dropout))

        self.first, self.down, self.inner = block(4), block(CHANNELS, 2), block(CHANNELS)
        self.up, self.last = nn.Upsample(scale_factor=2), block(2 * CHANNELS)
        self.head = nn.Conv2d(CHANNELS, 1, 1)

    def forward(self, z: Tensor) -> Tensor:
        """The image that a random input stands for."""
        fine = self.first(z)
        coarse = self.up(self.inner(self.down(fine)))
        return self.head(self.last(torch.cat([fine, coarse], 1))).flatten(1)


def total_variation(image: Tensor) -> Tensor:
    """Sum of the absolute differences of neighbours."""
    square = image.unflatten(-1, (SIZE, SIZE))
    return square.diff(dim=-1).abs().sum() + square.diff(dim=-2).abs().sum()


@dataclass
class Reconstruction:
    """Mean and standard deviation of every pixel, and what they say of the truth."""

    mean: Tensor
    std: Tensor
    truth: Tensor

    def log_likelihood(self, factor: float = 1.0) -> float:
        """Mean over pixels, with the standard deviation times a factor."""
        normal = torch.distributions.Normal(self.mean, factor * self.std)
        return float(normal.log_prob(self.truth).mean())

    @property
    def numbers(self) -> list[float]:
        """PSNR, log-likelihood, the factor it asks for, the likelihood then, rank correlation."""
        error = (self.mean - self.truth).abs()
        factor = float((error / self.std).square().mean().sqrt())
        ranks = torch.stack([error, self.std]).argsort(1).argsort(1).double()
        signal = 10 * math.log10(1 / float(error.square().mean()))
        correlation = float(torch.corrcoef(ranks)[0, 1])
        return [signal, self.log_likelihood(), factor, self.log_likelihood(factor), correlation]


def of_width(model: UNet, prior: lk.Prior, width: float) -> lk.Prior:
    """Of each group of weights the precision 1 / (width² · mean square of its trained values).

    Rescaled weights that a norm makes scale-free have the same uncertainty under it.
    """
    values = {}
    for key, names in prior.groups.items():
        weights = torch.cat([model.get_parameter(name).detach().flatten() for name in names])
        values[key] = 1 / (width**2 * weights.square().mean())
    return prior.with_values(values)


def reconstruct(seed: int, steps: int, draws: int) -> dict[str, Reconstruction]:
    """Measure, train, and predict by all methods."""
    torch.manual_seed(seed)
    truth, projections = phantom(SIZE), radon(SIZE, 2 * ANGLES)
    # Every other angle, and two between them that lie across each other.
    matrix, between = projections[::2].flatten(0, 1), projections[[5, 13]].flatten(0, 1)
    noise = 0.05 * float((matrix @ truth).abs().mean())
    y, aside = (
        (a @ truth + noise * torch.randn(len(a), dtype=a.dtype)).unsqueeze(0)
        for a in (matrix, between)
    )
    z = torch.randn(1, 4, SIZE, SIZE, dtype=torch.float64)

    def trained(dropout: float) -> UNet:
        model = UNet(dropout).double()

        def loss() -> Tensor:
            image = model(z)
            misfit = (image @ matrix.T - y).square().sum() / (2 * noise**2)
            return misfit + TV_WEIGHT * total_variation(image) / noise

        minimise(loss, model.parameters(), steps, 1e-2)
        return model

    model = trained(0.0).eval()
    prior = lk.Prior.normalised(model, z.repeat(2, 1, 1, 1))
    likelihood = lk.likelihoods.Gaussian(noise**2)
    la = lk.Laplace(
        model, likelihood, "function_space", prior=prior, output=lambda image: image @ matrix.T
    ).fit((z, y))

    def scored(width: float) -> float:
        la.set_prior(of_width(model, prior, width))
        p = la.predict(z, output=lambda image: image @ between.T)
        return float(p.log_likelihood(aside).mean())

    def reconstruction() -> Reconstruction:
        p = la.predict(z, output=lambda image: image)
        return Reconstruction(p.mean[0], p.std[0], truth)

    width = max(WIDTHS, key=scored)
    la.set_prior(of_width(model, prior, width))
    found = {"Laplace, prior chosen aside": reconstruction()}
    la.tune([(z, y)], by="linearised", noise=False, steps=20, tolerance=1e-3)
    found["Laplace, prior by evidence"] = reconstruction()

    def dropped(rate: float) -> Tensor:
        dropping = trained(rate).train()
        with torch.no_grad():
            return torch.cat([dropping(z) for _ in range(draws)])

    def fits(images: Tensor) -> float:
        seen = images @ between.T
        spread = (seen.var(0) + noise**2).sqrt()
        return float(torch.distributions.Normal(seen.mean(0), spread).log_prob(aside).mean())

    dropouts = {rate: dropped(rate) for rate in RATES}
    rate = max(dropouts, key=lambda rate: fits(dropouts[rate]))
    drawn = dropouts[rate]
    print(f"seed {seed}: width {width:g}, rate {rate:g}")
    found["MC dropout, rate chosen aside"] = Reconstruction(drawn.mean(0), drawn.std(0), truth)
    return found


def draw(found: dict[str, Reconstruction]) -> Any:
    """The truth, and for each method mean, error and standard deviation, each on its own scale."""
    drawing, axes = figure(len(found), 4, (10.5, 7))
    for row, (name, one) in zip(axes, found.items(), strict=True):
        error = (one.mean - one.truth).abs()
        panels = {
            "truth": (one.truth, 1.0, "gray"),
            "mean": (one.mean, 1.0, "gray"),
            "|error|": (error, float(error.max()), "viridis"),
            "σ": (one.std, float(one.std.max()), "viridis"),
        }
        for ax, (title, (values, top, colors)) in zip(row, panels.items(), strict=True):
            left = name.replace(", ", ",\n") if title == "truth" else ""
            square = values.reshape(SIZE, SIZE)
            head = title if name == next(iter(found)) else ""
            shown = image(ax, square, head, left, vmin=0, vmax=top, cmap=colors)
            if colors == "viridis":
                drawing.colorbar(shown, ax=ax, shrink=0.8)
    claim(drawing, "Tomography: the size of σ is right for Laplace; its shape is no better")
    return drawing


def main() -> None:
    """Some draws of the noise, one table."""
    chosen = options(__doc__).parse_args()
    steps, seeds = (30, 1) if chosen.quick else (1000, 3)
    runs = []
    for seed in range(chosen.seed, chosen.seed + seeds):
        runs.append(reconstruct(seed, steps, 20 if chosen.quick else 200))
        for name, one in runs[-1].items():
            print(f"{name:<30}", *(f"{number:.3f}" for number in one.numbers), flush=True)
    header = [
        "",
        "PSNR ↑",
        "log-likelihood ↑",
        "factor on σ (1)",
        "with it ↑",
        "rank correlation ↑",
    ]
    rows = [
        [
            name,
            *(spread(column, 2) for column in zip(*(r[name].numbers for r in runs), strict=True)),
        ]
        for name in runs[0]
    ]
    show("tomography", table(header, rows), draw(runs[0]), chosen.out)


if __name__ == "__main__":
    main()
