"""Scores beside those of the network, their pictures, and structures compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import plot_calibration
from lapkernels.laplace.calibration import auroc
from tests.laplace.problems import classifier, regressor


def test_of_classes_by_hand() -> None:
    problem = classifier(30)
    la = lk.Laplace(problem.model, "categorical", prior=0.1).fit(problem.batches)
    found = la.evaluate(problem.batches, shifted=[3 * problem.new])
    logits = problem.model(problem.x).detach()
    parts = {"network": logits.softmax(1), "Laplace": la.predict(problem.x).probabilities}
    new = {
        "network": problem.model(3 * problem.new).detach().softmax(1),
        "Laplace": la.predict(3 * problem.new).probabilities,
    }
    for name, p in parts.items():
        right = p.argmax(1) == problem.y
        wanted = {
            "accuracy": right.double().mean(),
            "NLL": -p.log().gather(1, problem.y.unsqueeze(1)).mean(),
            "ECE": lk.laplace.calibration(p, problem.y).ece,
            "Brier": (p - nn.functional.one_hot(problem.y, 3)).square().sum(1).mean(),
            "AUROC": (new[name].max(1)[0][:, None] < p.max(1)[0][None]).double().mean(),
        }
        assert found.scores[name] == pytest.approx({k: float(v) for k, v in wanted.items()})
    assert found.count == 30 and "NLL" in repr(found) and "network" in repr(found)


def test_of_a_regression_by_hand() -> None:
    """Coverage and the noise of the training data, which is the network's own."""
    problem = regressor(200)
    la = lk.Laplace(problem.model, "gaussian", "full").fit((problem.x, problem.y))
    la.tune((problem.x[:50], problem.y[:50]))
    found = la.evaluate((problem.x, problem.y)).scores
    residual = problem.y - problem.model(problem.x).detach()
    variance = residual.square().mean()
    normal = torch.distributions.Normal(torch.zeros(()), variance.sqrt())
    assert found["network"] == pytest.approx(
        {
            "RMSE": float(variance.sqrt()),
            "NLL": -float(normal.log_prob(residual).mean()),
            "coverage 90 %": float((residual.abs() < 1.6449 * variance.sqrt()).double().mean()),
        }
    )
    p = la.predict(problem.x)
    inside = (residual.abs() < 1.6449 * (p.variance + p.noise).sqrt()).double().mean()
    assert found["Laplace"]["coverage 90 %"] == pytest.approx(float(inside))
    torch.testing.assert_close(p.total_std.square(), p.std.square() + p.noise)


def test_pixels_and_bits() -> None:
    """Ignored pixels do not count; a logit for each bit."""
    torch.manual_seed(0)
    model = nn.Conv2d(1, 3, 3, padding=1).double().eval()
    x, y = torch.randn(3, 1, 5, 5, dtype=torch.float64), torch.randint(3, (3, 5, 5))
    y[0] = -100
    found = lk.Laplace(model, "classification").fit((x, y)).evaluate([(x, y)])
    f, kept = model(x).detach().movedim(1, -1)[1:].flatten(0, 2), y[1:].flatten()
    nll = nn.functional.cross_entropy(f, kept)
    assert found.count == 50 and found.scores["network"]["NLL"] == pytest.approx(float(nll))
    bits = (torch.rand(3, 3, 5, 5) < 0.4).double()
    found = lk.Laplace(model, "bernoulli").fit((x, bits)).evaluate([(x, bits)], x + 3)
    right = ((model(x) > 0) == (bits > 0)).double().mean()
    assert found.count == 225
    assert found.scores["network"]["accuracy"] == pytest.approx(float(right))


def test_auroc_counts_pairs() -> None:
    low, high = torch.tensor([0.0, 1, 2, 2]), torch.tensor([1.0, 2, 5])
    pairs = (high[:, None] > low).double() + 0.5 * (high[:, None] == low)
    assert auroc(low, high) == pytest.approx(float(pairs.mean()))


def test_structures_side_by_side() -> None:
    problem = classifier(30)
    la = lk.Laplace(problem.model, "categorical")
    held = (problem.x[20:], problem.y[20:])
    structures: list[Any] = ["diag", {"structure": "full", "limit": 1}, {"params": "6"}]
    found = la.compare(structures, problem.batches, held, held, problem.new)
    assert list(found.scores)[:2] == ["network", "diag"] and list(found.scores)[3] == "6"
    assert "limit=" in list(found.scores)[2] and not found.scores[list(found.scores)[2]]
    alone = lk.Laplace(problem.model, "categorical", "diag").fit(problem.batches).tune(held)
    wanted = alone.evaluate(held, problem.new).scores["Laplace"]
    assert wanted.items() <= found.scores["diag"].items()
    assert "fit s" in repr(found) and la.measured is None


def test_pictures_of_calibration() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    problem = classifier(30)
    la = lk.Laplace(problem.model, "categorical").fit(problem.batches)
    reliability, histogram = la.plot_calibration(problem.batches)
    bars = [bar.get_height() for bar in histogram.patches]
    assert len(reliability.lines) == 3 and sum(bars) == pytest.approx(2)
    other = regressor()
    line = lk.Laplace(other.model, "gaussian").fit(other.batches)
    with pytest.raises(ValueError, match="see evaluate"):
        plot_calibration(line.evaluate(other.batches))


@pytest.mark.parametrize("likelihood", ["heteroscedastic", "poisson"])
def test_others_have_no_scores(likelihood: str) -> None:
    problem = regressor()
    y: Tensor = problem.y[:, :1].abs().round() if likelihood[0] == "h" else problem.y.abs().round()
    la = lk.Laplace(problem.model, likelihood).fit((problem.x, y))
    with pytest.raises(NotImplementedError, match="see log_likelihood"):
        la.evaluate((problem.x, y))
    with pytest.raises(ValueError, match="needs labels"):
        lk.Laplace(problem.model).fit(problem.batches).evaluate(problem.x)
