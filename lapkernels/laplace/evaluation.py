"""How good predictions are on labelled data, beside those of the network alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lapkernels.curvature import Refused
from lapkernels.curvature.data.batches import batches_of
from lapkernels.curvature.recording.targets import with_targets
from lapkernels.laplace.calibration import Calibration, auroc, of_confidence
from lapkernels.laplace.predictive.forward import positions_of
from lapkernels.laplace.predictive.prediction import Prediction, expectation
from lapkernels.likelihoods import Bernoulli, Categorical, Gaussian

if TYPE_CHECKING:
    from lapkernels.laplace.laplace import Laplace

# The share of targets that a central interval should hold.
COVERAGE = 0.9


@dataclass
class Scores:
    """Sums over targets, and for each target a confidence [N] and whether it was met [N].

    Of classes the confidence is the largest probability; of a regression minus the standard
    deviation of y, and met means inside of the central interval of 90 %.
    """

    nll: float = 0.0
    squares: float = 0.0
    confidence: list[Tensor] = field(default_factory=list)
    met: list[Tensor] = field(default_factory=list)
    shifted: list[Tensor] = field(default_factory=list)

    def table(self, classes: bool) -> dict[str, float]:
        """The scores by name."""
        met = torch.cat(self.met).double()
        count = len(met)
        if classes:
            found = {
                "accuracy": float(met.mean()),
                "NLL": self.nll / count,
                "ECE": self.calibration.ece,
                "Brier": self.squares / count,
            }
        else:
            rms = math.sqrt(self.squares / count)
            found = {"RMSE": rms, "NLL": self.nll / count, "coverage 90 %": float(met.mean())}
        if self.shifted:
            found["AUROC"] = auroc(-torch.cat(self.confidence), -torch.cat(self.shifted))
        return found

    @property
    def calibration(self) -> Calibration:
        """Of class probabilities."""
        return of_confidence(torch.cat(self.confidence), torch.cat(self.met))


@dataclass(frozen=True)
class Evaluation:
    """Scores of the network alone and with its posterior, by name.

    Classes: accuracy, negative log-likelihood (NLL), expected calibration error (ECE) and Brier
    score. Regression: root mean squared error, NLL, and the share of targets inside of the central
    interval of 90 %. AUROC tells shifted inputs from the others by the confidence.
    ``calibrations`` has the reliability of class probabilities, None in regression.
    """

    scores: dict[str, dict[str, float]]
    calibrations: dict[str, Calibration] | None
    count: int

    def __repr__(self) -> str:
        return f"{_table(self.scores)}\n{self.count} targets"


def evaluate(la: Laplace, data: Any, shifted: Any, **options: Any) -> Evaluation:
    """One pass over labelled ``data``, and one over ``shifted`` inputs if there are any."""
    likelihood = la.likelihood
    if not isinstance(likelihood, Categorical | Bernoulli | Gaussian):
        raise NotImplementedError(
            f"there are no scores of {type(likelihood).__name__}: see log_likelihood of predictions"
        )
    both = {"network": Scores(), "Laplace": Scores()}
    for batch in with_targets(la.model, batches_of(data)):
        if batch.target is None:
            raise ValueError("evaluate needs labels: give batches (inputs, labels)")
        for name, p in _predictions(la, batch.inputs, options):
            _add(both[name], p, batch.target)
    if shifted is not None:
        for batch in la.batches_to_predict(shifted):
            for name, p in _predictions(la, batch, options):
                both[name].shifted.append(_confidence(p))
    classes = not isinstance(likelihood, Gaussian)
    scores = {name: one.table(classes) for name, one in both.items()}
    calibrations = {name: one.calibration for name, one in both.items()} if classes else None
    return Evaluation(scores, calibrations, sum(len(part) for part in both["network"].met))


def compare(
    make: Callable[..., Laplace],
    structures: Iterable[str | Mapping[str, Any]],
    train: Any,
    held_out: Any,
    data: Any,
    shifted: Any,
) -> Comparison:
    """Fit, tune and evaluate one posterior for each structure."""
    rows: dict[str, dict[str, float]] = {}
    for one in structures:
        arguments = {"structure": one} if isinstance(one, str) else dict(one)
        name = ", ".join(str(value) for value in arguments.values())
        try:
            start = time.perf_counter()
            la = make(**arguments).fit(train)
            fitted = time.perf_counter()
            la.tune(held_out, by="cautious" if held_out is None else "held_out")
            tuned = time.perf_counter()
            found = la.evaluate(data, shifted)
        except Refused as error:
            rows[f"{name}: {error}"] = {}
            continue
        seconds = {
            "fit s": fitted - start,
            "tune s": tuned - fitted,
            "evaluate s": time.perf_counter() - tuned,
        }
        rows.setdefault("network", found.scores["network"])
        rows[name] = {**found.scores["Laplace"], **seconds}
    return Comparison(rows)


@dataclass(frozen=True)
class Comparison:
    """Scores and seconds of each structure, by name; a structure that was refused has none."""

    scores: dict[str, dict[str, float]]

    def __repr__(self) -> str:
        return _table(self.scores)


def _predictions(
    la: Laplace, inputs: Any, options: dict[str, Any]
) -> Iterator[tuple[str, Prediction]]:
    """What the network says alone, and with its posterior."""
    p = la.predict(inputs, **options)
    zero, likelihood = torch.zeros_like(p.mean), la.network_likelihood
    expected = expectation(p.mean, zero, likelihood)
    yield "network", Prediction(p.mean, zero, None, expected, likelihood)
    yield "Laplace", p


def _add(scores: Scores, p: Prediction, y: Tensor) -> None:
    """Add the targets of a batch, without those that are ignored."""
    likelihood = p.likelihood
    scores.nll -= float(p.log_likelihood(y).double().sum())
    confidence, kept = _confidence(p), slice(None)
    if isinstance(likelihood, Categorical):
        probabilities = _by_position(p.probabilities, p.mean, likelihood)
        if y.is_floating_point():
            t = y.movedim(likelihood.dim, -1).flatten(0, -2)
            labels = t.argmax(1)
        else:
            labels = y.flatten()
            kept = labels != likelihood.ignore_index
            labels, probabilities = labels[kept].long(), probabilities[kept]
            t = torch.nn.functional.one_hot(labels, probabilities.shape[1])
        met, error = probabilities.argmax(1) == labels, probabilities - t
    elif isinstance(likelihood, Bernoulli):
        met, error = (p.probabilities >= 0.5) == (y >= 0.5), p.probabilities - y
    else:
        error = p.mean - y
        width = math.sqrt(2) * float(torch.erfinv(torch.tensor(COVERAGE)))
        met = error.abs() <= width * p.total_std
    scores.squares += float(error.double().square().sum())
    scores.met.append(met.flatten())
    scores.confidence.append(confidence[kept])


def _confidence(p: Prediction) -> Tensor:
    """The largest probability of each target, or minus the standard deviation of y, [N]."""
    likelihood = p.likelihood
    if isinstance(likelihood, Gaussian):
        return -p.total_std.flatten()
    if isinstance(likelihood, Bernoulli):
        return torch.maximum(p.probabilities, 1 - p.probabilities).flatten()
    assert isinstance(likelihood, Categorical)
    return _by_position(p.probabilities, p.mean, likelihood).max(1).values


def _by_position(values: Tensor, f: Tensor, likelihood: Categorical) -> Tensor:
    """[M, C] of class values in the shape of the outputs."""
    return values.flatten(1)[:, positions_of(f, likelihood)].flatten(0, 1)


def _table(scores: Mapping[str, Mapping[str, float]]) -> str:
    columns = list(dict.fromkeys(key for row in scores.values() for key in row))
    width = max(len(name) for name in scores if scores[name] or len(name) < 40)
    lines = [" " * width + "".join(f"{column:>{max(len(column), 8) + 2}}" for column in columns)]
    for name, row in scores.items():
        cells = (
            f"{_number(column, row[column]):>{max(len(column), 8) + 2}}" if column in row else ""
            for column in columns
        )
        lines.append(f"{name:<{width}}" + "".join(cells))
    return "\n".join(lines)


def _number(column: str, value: float) -> str:
    return f"{value:.2f}" if column.endswith(" s") else f"{value:.4f}"
