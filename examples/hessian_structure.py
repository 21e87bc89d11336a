"""The Hessian, its inverse and what a diagonal posterior loses, for a small and a large network.

Two perceptrons of one hidden layer on digits of 8x8 pixels, one with fewer parameters than there
are images and one with more. Draws |H|, |(H + Λ)⁻¹| and the error of the diagonalised inverse, the
L-curve of Tikhonov's regularisation and the eigenvalues. Prints for each network how much of the
inverse lies off the diagonal: as the share of its Frobenius norm that the diagonal approximation
misses, the mean |correlation| of two parameters, and that of two in one block (the weights of one
neuron) and in different blocks.

    python examples/hessian_structure.py --data mnist.npz --out results

MNIST's images are averaged down to 8x8 pixels; without a file scikit-learn's digits are used.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from common import minimise, options, show, table
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import diagonalisation_error, l_curve, plots

# Of the prior; also the weight decay of training.
PRECISION = 1.0


@dataclass(frozen=True)
class Found:
    """A trained network's accuracy on new images, and its dense posterior."""

    parameters: int
    accuracy: float
    h: Tensor
    blocks: Tensor
    eigenvalues: Tensor

    @property
    def precision(self) -> Tensor:
        """H + Λ."""
        return self.h + PRECISION * torch.eye(len(self.h), dtype=self.h.dtype)


def images(file: Path | None, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and new images [N, 64] and their labels."""
    if file is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        x = torch.as_tensor(digits.data / 16, dtype=torch.float32)  # pyright: ignore
        y = torch.as_tensor(digits.target)  # pyright: ignore
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        x, y = x[order], y[order]
        return x[:-400][:count], y[:-400][:count], x[-400:], y[-400:]
    found = []
    with numpy.load(file) as arrays:
        for part, size in (("train", count), ("test", 2000)):
            x = torch.from_numpy(arrays[f"x_{part}"][:size]).float().unsqueeze(1) / 255
            found.append(F.adaptive_avg_pool2d(x, 8).flatten(1))
            found.append(torch.from_numpy(arrays[f"y_{part}"][:size]).long())
    return found[0], found[1], found[2], found[3]


def network(hidden: int, data: tuple[Tensor, Tensor, Tensor, Tensor], steps: int) -> Found:
    """Train with the prior's penalty and measure the whole Gauss-Newton matrix."""
    x, y, new, labels = data
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))

    def loss() -> Tensor:
        penalty = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return F.cross_entropy(model(x), y) + 0.5 * PRECISION / len(x) * penalty

    minimise(loss, model.parameters(), steps, 2e-2)
    la = lk.Laplace(model.eval(), "classification", "full", prior=PRECISION)
    la.fit([(x[i : i + 100], y[i : i + 100]) for i in range(0, len(x), 100)])
    h = la.measured.state.matrix  # pyright: ignore[reportOptionalMemberAccess]
    # The neuron that each weight or bias leads to, numbered through both layers.
    neurons = torch.arange(hidden), hidden + torch.arange(10)
    parts = [neurons[0].repeat_interleave(64), neurons[0]]
    parts += [neurons[1].repeat_interleave(hidden), neurons[1]]
    accuracy = float((model(new).argmax(1) == labels).float().mean())
    values = la.posterior.eigenvalues()  # pyright: ignore[reportAttributeAccessIssue]
    return Found(len(h), accuracy, h.double(), torch.cat(parts), values)


def numbers(found: Found) -> list[str]:
    """A row of the table."""
    covariance = torch.linalg.inv(found.precision)
    missed = diagonalisation_error(found.precision)
    scale = covariance.diagonal().rsqrt()
    correlation = (covariance * scale * scale.unsqueeze(1)).abs()
    same = found.blocks == found.blocks.unsqueeze(1)
    other = ~torch.eye(len(scale), dtype=torch.bool)
    gamma = float((found.eigenvalues / (found.eigenvalues + PRECISION)).sum())
    values = [
        float(missed.norm() / covariance.norm()),
        float(missed.diagonal().norm() / covariance.diagonal().norm()),
        *(float(correlation[mask].mean()) for mask in (other, same & other, ~same)),
    ]
    shown = [f"{value:.4f}" for value in values]
    return [str(found.parameters), f"{found.accuracy:.3f}", f"{gamma:.0f}", *shown]


def drawn(cases: dict[str, Found]) -> object:
    """A row of pictures for each network, and the L-curve of the smaller one."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(cases), 4, figsize=(17, 4 * len(cases)))
    for row, (name, found) in zip(axes, cases.items(), strict=True):
        plots.plot_matrix(found.h, row[0], f"{name}: |H|")
        plots.plot_matrix(torch.linalg.inv(found.precision), row[1], "|(H + Λ)⁻¹|")
        plots.plot_matrix(diagonalisation_error(found.precision), row[2], "diagonalisation error")
    smaller, larger = cases.values()
    curve = l_curve(smaller.h, torch.logspace(-6, 4, 31, dtype=torch.float64))
    plots.plot_l_curve(curve, axes[0][3])
    plots.plot_spectrum(larger.eigenvalues, PRECISION, axes[1][3])
    figure.tight_layout()
    return figure


def main() -> None:
    """Train, measure, draw."""
    parser = options(__doc__, data="MNIST as .npz with x_train, y_train, x_test, y_test")
    parser.add_argument("--hidden", type=int, default=66, help="units of the large network")
    arguments = parser.parse_args()
    small, large = (3, 6) if arguments.quick else (10, arguments.hidden)
    data = images(arguments.data, 200 if arguments.quick else 1397)
    cases = {
        f"{hidden} hidden units": network(hidden, data, 20 if arguments.quick else 300)
        for hidden in (small, large)
    }
    head = [
        *("network", "parameters", "accuracy", "γ", "missed of the inverse", "of its diagonal"),
        *("mean |correlation|", "in a neuron", "between neurons"),
    ]
    rows = [[name, *numbers(found)] for name, found in cases.items()]
    show("hessian_structure", table(head, rows), drawn(cases), arguments.out)


if __name__ == "__main__":
    main()
