"""Posteriors that come with training, each in a plain loop: online evidence, VL, and LAE.

The first two regress a sine with a gap in its data, where error bars should grow; scikit-learn's
estimator does the same in one call. The third is an autoencoder of points on a circle, shown points
of other radii. The table has the share of new points inside two standard deviations
(noise included; 0.954 is right), and standard deviations of f off the data, in the gap or at radius
3, over those at the data.

    python examples/training_loops.py --out results
"""

from collections.abc import Callable

import matplotlib
import torch
from common import options, show, table
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.integrations import LaplaceRegressor
from lapkernels.laplace import OnlineEvidence

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

NOISE = 0.1
GRID = torch.linspace(-3, 3, 121, dtype=torch.float64).unsqueeze(1)
# Mean and standard deviation of f on the grid, and the standard deviation of the noise.
Band = tuple[Tensor, Tensor, float]


def sine(count: int) -> tuple[Tensor, Tensor]:
    """Points with 1 < |x| < 2."""
    x = 2 * torch.rand(count, 1, dtype=torch.float64) - 1
    x = x + x.sign()
    return x, (2 * x).sin() + NOISE * torch.randn_like(x)


def perceptron() -> nn.Sequential:
    """One hidden layer of 30 units."""
    return nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).double()


def online_evidence(x: Tensor, y: Tensor, epochs: int) -> Band:
    """MAP training, with prior and noise tuned by the evidence every few epochs."""
    model = perceptron()
    online = OnlineEvidence(model, "regression", "full", every=epochs // 5, burn_in=epochs // 5)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            online.loss(model(x[part]), y[part], num_data=len(x)).backward()
            optimizer.step()
        online.end_epoch((x, y))
    assert online.laplace is not None
    found = online.laplace.predict(GRID)
    return found.mean, found.std, float(found.noise[0]) ** 0.5


def variational_laplace(x: Tensor, y: Tensor, epochs: int) -> Band:
    """Means and log standard deviations trained together; the noise is given."""
    q = lk.VariationalLaplace(perceptron(), lk.likelihoods.Gaussian(NOISE**2), data_size=len(x))
    optimizer = torch.optim.Adam(q.param_groups(lr=1e-2, log_std_lr_multiplier=3))
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            q.loss(x[part], y[part]).backward()
            optimizer.step()
    found = q.predict(GRID)
    return found.mean, found.std, NOISE


def estimator(x: Tensor, y: Tensor, epochs: int) -> Band:
    """The same as an estimator of scikit-learn, which trains on its own."""
    model = LaplaceRegressor((30,), "full", epochs=epochs, batch_size=32, random_state=0)
    model.fit(x.numpy(), y[:, 0].numpy())
    mean, std = model.predict(GRID.numpy(), return_std=True)
    std = (std**2 - model.noise_**2) ** 0.5
    return torch.from_numpy(mean)[:, None], torch.from_numpy(std)[:, None], float(model.noise_)


def laplacian_autoencoder(epochs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points on a circle, radii to look at, and the standard deviation of reconstructions there."""

    def ring(radius: Tensor | float, count: int) -> Tensor:
        angle = 2 * torch.pi * torch.rand(count)
        return torch.stack([angle.cos(), angle.sin()], 1) * radius

    points = ring(1.0, 256) + 0.03 * torch.randn(256, 2)
    encoder = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1))
    decoder = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 2))
    ae = lk.LaplacianAutoencoder(encoder, decoder, data_size=len(points))
    for _ in range(epochs):
        for part in torch.randperm(len(points)).split(64):
            ae.step(points[part])
    radii = torch.linspace(0.2, 3, 15)
    found = [ae.reconstruct(ring(radius, 64)).variance.sqrt().mean() for radius in radii.tolist()]
    return points, radii, torch.stack(found)


METHODS: dict[str, Callable[[Tensor, Tensor, int], Band]] = {
    "online evidence": online_evidence,
    "Variational Laplace": variational_laplace,
    "scikit-learn estimator": estimator,
}


def main() -> None:
    """Command line of the example."""
    arguments = options(__doc__).parse_args()
    torch.manual_seed(arguments.seed)
    epochs = 20 if arguments.quick else 500
    x, y = sine(100)
    new_x, new_y = sine(1000)
    gap, data = (GRID.abs() < 0.5)[:, 0], ((GRID.abs() > 1) & (GRID.abs() < 2))[:, 0]
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.4), layout="constrained")
    rows = []
    for (name, method), axis in zip(METHODS.items(), axes, strict=False):
        mean, std, noise = method(x, y, epochs)
        at = ((new_x + 3) * 20).round().long().clamp(0, 120)[:, 0]
        inside = (new_y - mean[at]).abs() < 2 * (std[at] ** 2 + noise**2).sqrt()
        ratio = float(std[gap].mean() / std[data].mean())
        rows.append([name, f"{inside.double().mean():.3f}", f"{noise:.3f}", f"{ratio:.2f}"])
        axis.plot(x, y, ".", color="black", markersize=3)
        axis.plot(GRID, mean)
        total = (std**2 + noise**2).sqrt()
        low, high = (mean - 2 * total)[:, 0], (mean + 2 * total)[:, 0]
        axis.fill_between(GRID[:, 0], low, high, alpha=0.3)
        axis.set(title=name, ylim=(-3, 3))
    points, radii, deviation = laplacian_autoencoder(epochs // 2)
    on = deviation[(radii - 1).abs().argmin()]
    rows.append(["Laplacian autoencoder", "", "", f"{deviation[-1] / on:.2f}"])
    axes[3].plot(radii, deviation)
    axes[3].axvline(1, color="black", linewidth=0.5)
    axes[3].set(title="Laplacian autoencoder", xlabel="radius", ylabel="std of reconstructions")
    header = ("posterior", "inside 2σ", "noise (true 0.1)", "σ off the data / at the data")
    show("training_loops", table(header, rows), figure, arguments.out)


if __name__ == "__main__":
    main()
