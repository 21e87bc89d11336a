"""A likelihood from a word, a torch loss, or a custom loss."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch.nn.functional as F
from torch import nn

from lapkernels.likelihoods.bernoulli import Bernoulli
from lapkernels.likelihoods.categorical import Categorical
from lapkernels.likelihoods.gaussian import Gaussian
from lapkernels.likelihoods.heteroscedastic import HeteroscedasticGaussian
from lapkernels.likelihoods.likelihood import Likelihood
from lapkernels.likelihoods.loss_function import LossFunction
from lapkernels.likelihoods.poisson import Poisson

WORDS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "regression": Gaussian,
    "categorical": Categorical,
    "classification": Categorical,
    "bernoulli": Bernoulli,
    "multilabel": Bernoulli,
    "poisson": Poisson,
    "heteroscedastic": HeteroscedasticGaussian,
}


def resolve(value: Likelihood | str | nn.Module | Callable[..., Any]) -> Likelihood:
    """The likelihood that ``value`` stands for.

    - a ``Likelihood``: itself;
    - a word: "gaussian" or "regression", "categorical" or "classification", "bernoulli" or
      "multilabel", "poisson", "heteroscedastic", with their default settings;
    - ``nn.MSELoss``, ``nn.CrossEntropyLoss``, ``nn.BCEWithLogitsLoss``, ``nn.PoissonNLLLoss`` or
      their functions in ``torch.nn.functional``: the closed form of that loss. The curvature is
      that of the **sum** over samples and positions, for every ``reduction``: a mean is undone.
      MSELoss sums squares without a factor 1/2, which is ``Gaussian(variance=0.5)``;
    - any other loss(f, y): ``LossFunction``. It must return a sum; a module of torch that has a
      ``reduction`` is copied with ``reduction="sum"``.
    """
    if isinstance(value, Likelihood):
        return value
    if isinstance(value, str):
        if value not in WORDS:
            raise ValueError(f"likelihood = {value!r}: one of {', '.join(WORDS)} is needed")
        return WORDS[value]()
    if isinstance(value, type):
        raise TypeError(f"likelihood is the class {value.__name__}: pass an instance of it")
    if not callable(value):
        raise TypeError(
            f"likelihood is a {type(value).__name__}: a Likelihood, a word or a loss is needed"
        )
    for function, module in FUNCTIONS:
        if value is function:
            value = module()
    # A subclass may compute something else, so only the exact classes have closed forms.
    known = LOSSES.get(type(value))
    if known is not None:
        return known(value)
    if isinstance(value, nn.Module) and getattr(value, "reduction", "sum") != "sum":
        summed: Any = copy(value)
        summed.reduction = "sum"
        return LossFunction(summed)
    return LossFunction(value)


def _mean_squared(loss: nn.MSELoss) -> Likelihood:
    return Gaussian(variance=0.5)


def _cross_entropy(loss: nn.CrossEntropyLoss) -> Likelihood:
    return Categorical(
        weight=loss.weight, label_smoothing=loss.label_smoothing, ignore_index=loss.ignore_index
    )


def _binary_cross_entropy(loss: nn.BCEWithLogitsLoss) -> Likelihood:
    for option in ("weight", "pos_weight"):
        if getattr(loss, option) is not None:
            raise ValueError(
                f"BCEWithLogitsLoss has a {option}, which Bernoulli does not have; for few outputs "
                "pass LossFunction with a loss that sums"
            )
    return Bernoulli()


def _poisson(loss: nn.PoissonNLLLoss) -> Likelihood:
    if not loss.log_input:
        raise ValueError(
            "PoissonNLLLoss has log_input=False: outputs must be log-rates, log_input=True"
        )
    return Poisson()


def _gaussian(loss: nn.GaussianNLLLoss) -> Likelihood:
    raise ValueError(
        "GaussianNLLLoss takes the variance as a third argument: use HeteroscedasticGaussian, for "
        "outputs that hold means and log-variances"
    )


def _log_probabilities(loss: nn.NLLLoss) -> Likelihood:
    raise ValueError(
        "NLLLoss is linear in log-probabilities, so its curvature there is zero: leave the "
        "log-softmax out of the model and use CrossEntropyLoss or Categorical"
    )


LOSSES: dict[type, Callable[[Any], Likelihood]] = {
    nn.MSELoss: _mean_squared,
    nn.CrossEntropyLoss: _cross_entropy,
    nn.BCEWithLogitsLoss: _binary_cross_entropy,
    nn.PoissonNLLLoss: _poisson,
    nn.GaussianNLLLoss: _gaussian,
    nn.NLLLoss: _log_probabilities,
}

FUNCTIONS: tuple[tuple[Callable[..., Any], type[nn.Module]], ...] = (
    (F.mse_loss, nn.MSELoss),
    (F.cross_entropy, nn.CrossEntropyLoss),
    (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss),
    (F.poisson_nll_loss, nn.PoissonNLLLoss),
    (F.gaussian_nll_loss, nn.GaussianNLLLoss),
    (F.nll_loss, nn.NLLLoss),
)
