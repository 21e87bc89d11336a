"""Regression and classification of tables, as scikit-learn's estimators.

A perceptron is trained while the evidence tunes its prior, and for regression the noise; then it
gets a Laplace posterior, whose uncertainty is in the predictions. Columns are standardised, and so
are the targets of a regression. All of it is in float64 and depends on ``random_state`` only.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from lapkernels.curvature.data.random_state import seeded
from lapkernels.laplace import Laplace, OnlineEvidence
from lapkernels.laplace.predictive.prediction import Prediction

Array = NDArray[Any]


class _LaplaceEstimator(BaseEstimator):
    """A perceptron with a Laplace posterior, its training and its predictions."""

    def __init__(
        self,
        hidden: tuple[int, ...] = (50,),
        structure: str = "kron",
        prior: Any = "layer",
        epochs: int = 200,
        batch_size: int = 128,
        learning_rate: float = 1e-2,
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.structure = structure
        self.prior = prior
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _train(self, rows: Array, targets: Tensor, outputs: int, likelihood: str) -> None:
        """Set ``laplace_``, the posterior of a network with that many outputs."""
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs={self.epochs} and batch_size={self.batch_size}: 1 at least")
        self._center, self._scale = rows.mean(0), _spread(rows)
        x = self._inputs(rows)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with seeded(seed):
            network = _perceptron(x.shape[1], self.hidden, outputs)
            online = OnlineEvidence(
                network,
                likelihood,
                self.structure,
                prior=self.prior,
                method="exact",
                every=max(1, self.epochs // 5),
                burn_in=max(1, self.epochs // 5),
            )
            optimizer = torch.optim.Adam(network.parameters(), self.learning_rate)
            for _ in range(self.epochs):
                for part in torch.randperm(len(x)).split(self.batch_size):
                    optimizer.zero_grad()
                    online.loss(network(x[part]), targets[part], len(x)).backward()
                    optimizer.step()
                online.end_epoch((x, targets))
        optimizer.zero_grad()
        self.laplace_ = Laplace(
            network, online.likelihood, self.structure, "exact", prior=online.prior
        )
        self.laplace_.fit((x, targets)).tune(by="evidence")

    def _inputs(self, rows: Array) -> Tensor:
        return torch.from_numpy((rows - self._center) / self._scale)

    def _predict(self, X: Any) -> Prediction:
        check_is_fitted(self)
        rows: Any = validate_data(self, X, dtype=numpy.float64, reset=False)
        return self.laplace_.predict(self._inputs(rows))


class LaplaceRegressor(RegressorMixin, _LaplaceEstimator):
    """Regression with error bars: ``predict(X, return_std=True)``.

    .. code-block:: python

        model = LaplaceRegressor(random_state=0).fit(X, y)
        mean, std = model.predict(X_new, return_std=True)

    After ``fit``, ``laplace_`` is the posterior (of standardised columns and targets), ``noise_``
    the standard deviation of the noise that the evidence chose. Parameters: ``hidden``, widths of
    the hidden layers, with tanh between them; ``structure`` of the posterior and ``prior`` as in
    :class:`lapkernels.Laplace`; ``epochs`` of Adam with ``learning_rate`` on batches of
    ``batch_size`` rows; ``random_state``, the seed of weights and of the order of rows.
    """

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> LaplaceRegressor:
        """Train on rows X [N, features] and targets y [N] or [N, outputs]."""
        checked: Any = validate_data(
            self, X, y, dtype=numpy.float64, multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        rows, y = checked
        targets = numpy.asarray(y, dtype=numpy.float64)
        self._one = targets.ndim == 1
        targets = targets.reshape(len(targets), -1)
        self._target_center, self._target_scale = targets.mean(0), _spread(targets)
        scaled = torch.from_numpy((targets - self._target_center) / self._target_scale)
        self._train(rows, scaled, targets.shape[1], "regression")
        likelihood: Any = self.laplace_.likelihood
        noise = float(likelihood.variance) ** 0.5 * self._target_scale
        self.noise_ = noise[0] if self._one else noise
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean of y [N] or [N, outputs], and if asked its standard deviation, noise included."""
        found = self._predict(X)
        mean = found.mean.numpy() * self._target_scale + self._target_center
        std = (found.variance + found.noise).sqrt().numpy() * self._target_scale
        if self._one:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean


class LaplaceClassifier(ClassifierMixin, _LaplaceEstimator):
    """Classification with the model's uncertainty in its probabilities.

    .. code-block:: python

        model = LaplaceClassifier(random_state=0).fit(X, y)
        model.predict_proba(X_new)

    After ``fit``, ``laplace_`` is the posterior (of standardised columns), ``classes_`` has the
    labels. Parameters are those of :class:`LaplaceRegressor`.
    """

    def fit(self, X: Any, y: Any) -> LaplaceClassifier:
        """Train on rows X [N, features] and labels y [N]."""
        checked: Any = validate_data(self, X, y, dtype=numpy.float64, ensure_min_samples=2)
        rows, y = checked
        check_classification_targets(y)
        self.classes_, labels = numpy.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}: two at least are needed")
        self._train(rows, torch.from_numpy(labels), len(self.classes_), "classification")
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities [N, classes], averaged over the posterior by the probit approximation."""
        return self._predict(X).probabilities.numpy()

    def predict(self, X: Any) -> Array:
        """The most probable labels [N]."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def _perceptron(features: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    widths = (features, *hidden)
    layers: list[nn.Module] = []
    for inputs, width in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs)).double().eval()


def _spread(columns: Array) -> Array:
    """Standard deviations, one where a column is constant."""
    deviation = columns.std(0)
    return numpy.where(deviation > 0, deviation, 1.0)
