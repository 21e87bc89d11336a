"""Calibration, L-curve, diagonalisation error and pictures."""

from __future__ import annotations

import pytest
import torch

import lapkernels as lk
from lapkernels import laplace
from tests.laplace.problems import regressor


def test_calibration_by_hand() -> None:
    rows = [[0.95, 0.05], [0.92, 0.08], [0.4, 0.6], [0.35, 0.65]]
    p = torch.tensor(rows, dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 1])
    found = laplace.calibration(p, y, bins=10)
    # Bin (0.9, 1]: confidence 0.935, accuracy 0.5; (0.5, 0.6]: 0.6, 1; (0.6, 0.7]: 0.65, 1.
    gaps, counts = [0.435, 0.4, 0.35], [2, 1, 1]
    weighted = sum(g * c for g, c in zip(gaps, counts, strict=True)) / 4
    assert found.ece == pytest.approx(weighted, rel=1e-6)
    assert found.mce == pytest.approx(0.435, rel=1e-6)
    squares = sum(g * g * c for g, c in zip(gaps, counts, strict=True)) / 4
    assert found.rmsce == pytest.approx(squares**0.5, rel=1e-6)
    with pytest.raises(ValueError, match=r"\[N, C\] and \[N\]"):
        laplace.calibration(p, y[:2])


def test_calibration_is_that_of_torchmetrics() -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification")
    torch.manual_seed(0)
    p, y = torch.randn(200, 4).softmax(1), torch.randint(4, (200,))
    found = laplace.calibration(p, y, bins=12)
    norms = {"l1": found.ece, "l2": found.rmsce}
    for norm, value in {**norms, "max": found.mce}.items():
        wanted = functional.multiclass_calibration_error(p, y, 4, n_bins=12, norm=norm)
        assert value == pytest.approx(float(wanted), rel=1e-5)


def test_l_curve_of_a_known_matrix() -> None:
    """Of diag(1, .., 1, ε): flat below ε, falling as 1/λ between ε and 1: the corner is at ε."""
    matrix = torch.diag(torch.tensor([1.0] * 5 + [1e-6], dtype=torch.float64))
    curve = laplace.l_curve(matrix, torch.logspace(-9, 1, 41, dtype=torch.float64))
    wanted = 5 / (1 + curve.lambdas) + 1 / (1e-6 + curve.lambdas)
    torch.testing.assert_close(curve.sums, wanted)
    # Where λ reaches the well-determined part the fall ends: the vertex of the L.
    assert 1e-2 < curve.best < 1
    with pytest.raises(ValueError, match="ascending order"):
        laplace.l_curve(matrix, torch.tensor([1.0, 0.1, 2.0, 3.0, 4.0]))


def test_numbers() -> None:
    a = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    wanted = torch.tensor([[2 / 3 - 1 / 2, 1 / 3], [1 / 3, 2 / 3 - 1 / 2]], dtype=torch.float64)
    torch.testing.assert_close(laplace.diagonalisation_error(a), wanted)
    found = laplace.effective_parameters(torch.tensor([3.0, 1.0, 0.0]), 1.0)
    torch.testing.assert_close(found, torch.tensor([0.75, 0.5, 0.0], dtype=torch.float64))


def test_pictures() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    problem = regressor()
    model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    data = (problem.x[:, :1].float(), problem.y[:, :1].float())
    la = lk.Laplace(model, "gaussian", "full").fit(data)
    x = torch.randn(9, 1)
    ax = laplace.plot_bands(x, la.predict(x))
    assert len(ax.collections) == 3
    assert bool((torch.tensor(ax.lines[0].get_xdata()).diff() >= 0).all())
    h = problem.ggn()
    assert laplace.plot_matrix(h, title="H").get_title() == "H"
    large = torch.zeros(1200, 1200)
    large[7, 1100] = 1.0
    (image,) = laplace.plot_matrix(large).get_images()
    shown = torch.as_tensor(image.get_array())
    # The only entry is the largest of the tile it lies in, and no other tile has any.
    assert shown.shape == (500, 500) and shown.argmax() == 2 * 500 + 458
    assert (shown == shown.max()).sum() <= 4
    curve = laplace.l_curve(h, torch.logspace(-4, 4, 20))
    assert len(laplace.plot_l_curve(curve).lines) == 2
    assert len(laplace.plot_spectrum(torch.linalg.eigvalsh(h), 1.0).lines) == 3
