"""Pictures of curvature and uncertainty. Each draws into the given axes and returns them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapkernels.laplace.diagnostics import LCurve, effective_parameters
from lapkernels.laplace.evaluation import Evaluation
from lapkernels.laplace.predictive.prediction import Prediction

# Rows and columns of a matrix's picture at most.
PIXELS = 500


def plot_matrix(matrix: Tensor, ax: Any = None, title: str = "") -> Any:
    """|entries| of H, of its inverse or of a diagonalisation error, on a logarithmic scale.

    Of a matrix larger than the picture the largest entry of each tile is shown.
    """
    ax = _axes(ax)
    values = matrix.detach().abs().double().cpu()
    rows, columns = values.shape
    if max(rows, columns) > PIXELS:
        values = torch.nn.functional.adaptive_max_pool2d(values.unsqueeze(0), PIXELS)[0]
    floor = float(values.max()) * 1e-6 or 1.0
    image = ax.imshow(
        values.clamp_min(floor).log10(), interpolation="nearest", extent=(0, columns, rows, 0)
    )
    ax.figure.colorbar(image, ax=ax, label="log10 |entry|")
    ax.set_title(title)
    return ax


def plot_l_curve(curve: LCurve, ax: Any = None) -> Any:
    """The L-curve with its corner."""
    ax = _axes(ax)
    ax.loglog(curve.lambdas, curve.sums.cpu())
    ax.loglog(curve.best, float(curve.sums[curve.corner]), "o", label=f"λ = {curve.best:.2g}")
    ax.set(xlabel="λ", ylabel="sum of |(H + λ1)⁻¹|")
    ax.legend()
    return ax


def plot_spectrum(eigenvalues: Tensor, prior: float, ax: Any = None) -> Any:
    """Eigenvalues of H from the largest down, the prior's precision, and γ."""
    ax = _axes(ax)
    values = eigenvalues.detach().double().cpu().sort(descending=True).values
    gamma = float(effective_parameters(values, prior).sum())
    ax.semilogy(values.clamp_min(float(values.max()) * 1e-16))
    ax.axhline(prior, color="black", linestyle="--", label=f"prior {prior:.2g}")
    ax.axvline(gamma, color="tab:orange", label=f"γ = {gamma:.1f}")
    ax.set(xlabel="index", ylabel="eigenvalue")
    ax.legend()
    return ax


def plot_bands(x: Tensor, prediction: Prediction, ax: Any = None, noise: bool = True) -> Any:
    """Mean of a one-dimensional regression with bands of one to three standard deviations."""
    ax = _axes(ax)
    order = x.flatten().argsort()
    across = x.flatten()[order].cpu()
    variance = prediction.variance + prediction.noise if noise else prediction.variance
    mean = prediction.mean.flatten()[order].detach().cpu()
    deviation = torch.as_tensor(variance).sqrt().flatten()[order].cpu()
    for times in (3, 2, 1):
        low, high = mean - times * deviation, mean + times * deviation
        ax.fill_between(across, low, high, color="tab:orange", alpha=0.25, linewidth=0)
    ax.plot(across, mean, color="tab:blue")
    return ax


def plot_calibration(evaluation: Evaluation, axes: Any = None) -> Any:
    """Reliability of class probabilities before and after, and histograms of confidence.

    ``axes`` are two: accuracy against confidence, and the share of samples in each bin.
    """
    if evaluation.calibrations is None:
        raise ValueError("a regression has no class probabilities: see evaluate for its coverage")
    if axes is None:
        axes = _pyplot().subplots(1, 2, figsize=(9, 4))[1]
    reliability, histogram = axes
    reliability.plot([0, 1], [0, 1], color="black", linewidth=1)
    for shift, (name, found) in enumerate(evaluation.calibrations.items()):
        held, count = (found.count > 0).cpu(), found.count.cpu()
        points = found.confidence.cpu()[held], found.accuracy.cpu()[held]
        reliability.plot(*points, "o-", label=f"{name}, ECE {found.ece:.3f}")
        left = torch.arange(len(count), device="cpu") / len(count)
        width = 0.5 / len(count)
        histogram.bar(left + shift * width, count / count.sum(), width, align="edge", label=name)
    reliability.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    histogram.set(xlabel="confidence", ylabel="share of samples", xlim=(0, 1))
    for ax in (reliability, histogram):
        ax.legend()
    return axes


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    return _pyplot().subplots()[1]


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install lapkernels[plot]") from error
    return pyplot
