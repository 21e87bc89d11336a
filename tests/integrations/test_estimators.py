"""The scikit-learn estimators: its own checks, and what they say of data with known noise."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone  # noqa: E402
from sklearn.datasets import make_moons  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from lapkernels.integrations import LaplaceClassifier, LaplaceRegressor  # noqa: E402

# Small and short: the checks are about the interface, though some ask for a fair accuracy.
QUICK: dict[str, Any] = {"hidden": (8,), "epochs": 25, "learning_rate": 0.05, "random_state": 0}


@parametrize_with_checks([LaplaceRegressor(**QUICK), LaplaceClassifier(**QUICK)])
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def sines(count: int, seed: int) -> tuple[Any, Any]:
    generator = numpy.random.default_rng(seed)
    x = generator.uniform(-2, 2, (count, 1))
    return 10 + 5 * x, 100 + 20 * (numpy.sin(2 * x[:, 0]) + 0.2 * generator.normal(size=count))


def test_error_bars() -> None:
    """The noise is found, error bars hold as many targets as they should, and grow outside."""
    x, y = sines(200, 0)
    model = LaplaceRegressor((20,), epochs=150, random_state=0).fit(x, y)
    assert abs(model.noise_ / (20 * 0.2) - 1) < 0.2
    new_x, new_y = sines(500, 1)
    mean, std = model.predict(new_x, return_std=True)
    assert mean.shape == std.shape == (500,)
    within = numpy.mean(abs(new_y - mean) < 2 * std)
    assert 0.91 < within < 0.99
    far = model.predict(numpy.array([[60.0]]), return_std=True)[1]
    assert far[0] > 2 * std.max()
    assert std.min() > 0.99 * model.noise_


def test_several_targets() -> None:
    x, y = sines(60, 0)
    both = numpy.stack([y, -3 * y + 1], 1)
    model = LaplaceRegressor(**QUICK).fit(x, both)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == both.shape and model.noise_.shape == (2,)
    assert numpy.corrcoef(mean[:, 0], mean[:, 1])[0, 1] < -0.95
    numpy.testing.assert_allclose(std[:, 1].mean() / std[:, 0].mean(), 3, rtol=0.2)


def test_probabilities() -> None:
    x, labels = make_moons(200, noise=0.15, random_state=0)
    y = numpy.array(["left", "right"])[labels]
    model = LaplaceClassifier((20,), epochs=100, learning_rate=0.05, random_state=0).fit(x, y)
    assert list(model.classes_) == ["left", "right"]
    assert model.score(x, y) > 0.95
    probabilities = model.predict_proba(x)
    numpy.testing.assert_allclose(probabilities.sum(1), 1)
    # The plain network is surer of itself than the average over the posterior.
    with torch.no_grad():
        plain = model.laplace_.model(model._inputs(numpy.asarray(x))).softmax(1).numpy()
    assert probabilities.max(1).mean() < plain.max(1).mean()


def test_in_pipelines_searches_and_files() -> None:
    x, y = sines(40, 0)
    pipeline = make_pipeline(StandardScaler(), LaplaceRegressor(**QUICK))
    search = GridSearchCV(pipeline, {"laplaceregressor__structure": ["diag", "kron"]}, cv=2)
    search.fit(x, y)
    fitted = search.best_estimator_[-1]
    again = pickle.loads(pickle.dumps(fitted))
    inside = StandardScaler().fit_transform(x)
    for a, b in zip(
        fitted.predict(inside, return_std=True), again.predict(inside, return_std=True), strict=True
    ):
        numpy.testing.assert_array_equal(a, b)
    copied: Any = clone(fitted)
    other = copied.set_params(random_state=1)
    assert other.get_params()["hidden"] == (8,) and not hasattr(other, "laplace_")


def test_randomness_is_its_own() -> None:
    x, y = sines(30, 0)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = LaplaceRegressor(**QUICK).fit(x, y).predict(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    numpy.testing.assert_array_equal(LaplaceRegressor(**QUICK).fit(x, y).predict(x), first)


def test_refusals() -> None:
    x, y = sines(10, 0)
    with pytest.raises(ValueError, match="epochs=0 and batch_size=128"):
        LaplaceRegressor(epochs=0).fit(x, y)
    with pytest.raises(ValueError, match="y has one class"):
        LaplaceClassifier(**QUICK).fit(x, numpy.ones(10, dtype=int))
    with pytest.raises(ValueError, match="structure='none'"):
        LaplaceRegressor(structure="none", epochs=5).fit(x, y)
