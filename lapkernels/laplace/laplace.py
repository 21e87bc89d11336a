"""The Laplace approximation of a trained network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Output, batches_of, check_choice, is_batch, unlabelled
from lapkernels.curvature.data.contents import (
    Contents,
    Parameters,
    check_differentiation,
    parameters_of,
    plain,
)
from lapkernels.curvature.data.exchange import use_processes
from lapkernels.curvature.data.processes import processes
from lapkernels.curvature.errors import Refused
from lapkernels.laplace import saved
from lapkernels.laplace.defaults import Default, default_for, first_of
from lapkernels.laplace.evaluation import Comparison, Evaluation, compare, evaluate
from lapkernels.laplace.fitting import COMMON_OPTIONS, Measured, measure
from lapkernels.laplace.plots import plot_calibration
from lapkernels.laplace.posterior import Posterior
from lapkernels.laplace.predictive.prediction import How, Link, Prediction, joined, predict
from lapkernels.laplace.prior import Given, Prior, resolve_prior
from lapkernels.laplace.rollback import rolled_back
from lapkernels.laplace.structures import STRUCTURES, Subject
from lapkernels.laplace.tuning.choosing import (
    WITHOUT_DATA,
    Choice,
    cautious,
    choose,
    nodes_below,
    scaled,
    separate_groups,
    warn_of,
)
from lapkernels.laplace.tuning.evidence import Evidence, by_fixed_point, by_gradient
from lapkernels.laplace.tuning.held_out import curves_of
from lapkernels.laplace.tuning.linearised import Optimum, Solver, find_optimum
from lapkernels.laplace.weights import check_weights
from lapkernels.likelihoods import Gaussian, Likelihood, resolve

# Where tuning at the linearised optimum ends: nats left in θ, and relative change of precisions.
NATS, CLOSE = 0.1, 0.01
By = Literal["held_out", "cautious", "evidence", "mackay", "linearised"]
WORDS = {"ekfac": "kron_corrected", "gp": "function_space", "lowrank": "low_rank"}


class Laplace:
    """A Gaussian posterior around the parameters of a trained model.

    .. code-block:: python

        la = lk.Laplace(model, "classification").fit(loader)
        la.tune(held_out)  # batches that the network has not seen
        p = la.predict(x).probabilities

    ``structure`` is one of diag, kron, kron_corrected, blocks, full, low_rank, function_space and
    subnetwork; without one the first batch of the fit decides: see
    :mod:`lapkernels.laplace.defaults`. ``method`` is how its curvature is measured; ``params``
    chooses the uncertain parameters, the last layer alone for example; ``prior`` is the precision
    of the Gaussian prior: see :class:`Prior`. ``options`` belong to the structure. Random draws of
    the fit depend on ``seed`` only.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Any = "gaussian",
        structure: str | None = None,
        method: str | None = None,
        params: Parameters = None,
        prior: Given = 1.0,
        *,
        output: Output = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        # Chosen at the first batch of a fit, unless something here belongs to a structure.
        self._params, self._open = params, structure is method is None and not options
        if structure is None:
            structure = "kron" if self._open else "diag"
        self.structure = WORDS.get(structure, structure)
        if self.structure not in STRUCTURES:
            raise ValueError(f"structure={structure!r} must be one of {tuple(STRUCTURES)}")
        self._structure = STRUCTURES[self.structure]
        self.method = method or self._structure.methods[0]
        if self.method not in self._structure.methods:
            raise ValueError(
                f"method={method!r}: structure {self.structure!r} has {self._structure.methods}"
            )
        known = (*self._structure.options, *COMMON_OPTIONS)
        strange = [name for name in options if name not in known]
        if strange:
            raise TypeError(f"structure {self.structure!r} has options {known}, not {strange}")
        model = plain(model)
        self.model, self.output, self.seed, self.options = model, output, seed, options
        self.fitted_likelihood: Likelihood = resolve(likelihood)
        self._names = tuple(parameters_of(Contents.of(model), params))
        self._given, self.prior = prior, resolve_prior(prior, self.parameters)
        self.how: How = "linearised"
        device = next(iter(self.parameters.values())).device
        self.scale = torch.ones((), dtype=torch.float64, device=device)
        self.measured: Measured | None = None
        self.optimum: Optimum | None = None
        # What the logits are divided by, and what held-out data said of it.
        self.temperature = 1.0
        self.choice: Choice | None = None
        self._posterior: Posterior | None = None

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The uncertain parameters of the model, as they are now."""
        every = Contents.of(self.model).parameters
        lost = [name for name in self._names if name not in every]
        if lost:
            raise Refused(f"the model no longer has {lost[0]}: make a Laplace of it as it is now")
        return {name: every[name] for name in self._names}

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood, with the noise that was tuned."""
        if isinstance(self.fitted_likelihood, Gaussian):
            variance = self.fitted_likelihood.variance / float(self.scale)
            return replace(self.fitted_likelihood, variance=variance)
        return self.fitted_likelihood

    @rolled_back
    def fit(self, data: Any, *, progress: bool = False, checkpoint: Any = None) -> Laplace:
        """Measure the curvature on ``data``: a batch or an iterable of batches (inputs, labels).

        ``checkpoint`` names a file that is written after every batch; if it exists, the fit
        resumes after its last batch, with bitwise the same result.
        """
        path = None if checkpoint is None else Path(checkpoint)
        if self._open:

            def choose() -> Default | None:
                nonlocal data
                first, data = first_of(data)
                return default_for(self.model, first, self._params, self.output)

            default = processes().everywhere("Laplace.fit", choose)
            if default is not None:
                self._choose(default)
        self.measured = measure(
            self._structure,
            self._subject(),
            data,
            seed=self.seed,
            progress=progress,
            checkpoint=path,
        )
        self.optimum = None
        # Raises now if no posterior follows.
        self._posterior = self._decomposed(self._fitted().state)
        return self

    def _choose(self, default: Default) -> None:
        """The structure of a model that was given none."""
        self.structure, self.method, self.how = default.structure, default.method, default.how
        self._structure = STRUCTURES[default.structure]
        if self._names != default.names:
            self._names = default.names
            self.prior = resolve_prior(self._given, self.parameters)
        self._open = False

    @property
    def posterior(self) -> Posterior:
        """The posterior with the present prior and noise."""
        state = self._fitted().state
        if self._posterior is None:
            # Not all processes need to call it.
            with use_processes(None):
                self._posterior = self._decomposed(state)
        return self._posterior

    def _decomposed(self, state: Any) -> Posterior:
        shapes = {name: tuple(p.shape) for name, p in self.parameters.items()}
        return self._structure.posterior(state, shapes, self.prior.precision, self.scale)

    @rolled_back
    def set_prior(self, prior: Given) -> Laplace:
        """Replace the prior; the curvature stays."""
        self._retune(resolve_prior(prior, self.parameters), self.scale)
        return self

    def log_evidence(self) -> Tensor:
        """log p(y | X) of the training data under the Laplace approximation, float64.

        At the trained parameters, or at ``optimum`` if it was found for the present prior.
        """
        with torch.no_grad():
            return self._evidence()(self.prior, self.scale)

    @rolled_back
    def find_optimum(
        self,
        data: Any,
        *,
        by: Solver = "conjugate_gradients",
        tolerance: float = 1e-4,
        steps: int = 50,
    ) -> Optimum:
        """θ★ of the linearised model under the present prior, from the training data.

        It stays in ``optimum``, and the evidence is evaluated there until the prior changes. The
        gradient that is left is at most ``tolerance`` of what it is at the trained parameters.
        ``by="conjugate_gradients"`` takes at most ``steps`` Newton steps, each of several sweeps
        over the data; ``by="sgd"`` at most ``steps`` sweeps with a step for each batch.
        """
        known = None if self.optimum is None else self.optimum.theta
        self.optimum = find_optimum(
            self._subject(), data, self.posterior,
            by=by, tolerance=tolerance, steps=steps, start=known,
        )  # fmt: skip
        return self.optimum

    @rolled_back
    def tune(
        self,
        data: Any = None,
        by: Any = None,
        *,
        noise: bool | None = None,
        steps: int = 100,
        tolerance: float | None = None,
    ) -> Laplace:
        """Choose the prior precision of every group, and the noise of a regression.

        ``la.tune(held_out)`` with batches (inputs, labels) that the network has not seen is the
        one that makes predictions better. The two may come in either order,
        ``la.tune("linearised", train)``. ``by`` is

        - ``"held_out"``, the default with data: the largest predictive log-likelihood of ``data``
          over precision, noise and ``temperature`` of the logits, in one pass over them;
        - ``"cautious"``, the default without: the weakest prior that hardly widens predictions of
          data like the training data;
        - ``"evidence"``: maximise the evidence by gradient;
        - ``"mackay"``: MacKay's fixed point, which ends where the gradient of the evidence is zero;
        - ``"linearised"``: the evidence at the optimum θ★ of the linearised model, in
          turns with θ★ itself until both converge; ``data`` are the training data.
        """
        if isinstance(data, str):
            data, by = by, data
        check_differentiation()
        if by is None:
            by = "cautious" if data is None else "held_out"
            if data is None:
                warnings.warn(WITHOUT_DATA, stacklevel=3)
        check_choice("by", by, By)
        noise = self._tunes_noise(noise)
        if by in ("held_out", "linearised") and data is None:
            which = "kept aside" if by == "held_out" else "it was fitted on"
            raise ValueError(f"by={by!r} needs data: batches (inputs, labels) {which}")
        if by == "held_out":
            self._tune_on(data, noise)
        elif by == "cautious":
            self._tune_cautiously(noise)
        elif by == "linearised":
            self._tune_linearised(data, noise, steps, tolerance)
        else:
            options: dict[str, Any] = {"noise": noise, "steps": steps}
            if by == "evidence":
                found = by_gradient(self._evidence(), self.prior, self.scale, **options)
            else:
                options["tolerance"] = tolerance or 1e-6
                found = by_fixed_point(self._evidence(), self.prior, self.scale, **options)[:2]
            self._retune(*found)
            self._warn_of_unsettled(noise)
        return self

    def _tunes_noise(self, noise: bool | None) -> bool:
        gaussian = isinstance(self.fitted_likelihood, Gaussian)
        if noise and not gaussian:
            raise ValueError(f"{type(self.fitted_likelihood).__name__} has no noise to tune")
        if gaussian and noise is not False and self.method in ("empirical", "hessian"):
            raise ValueError(
                f"method {self.method!r} does not scale with the noise: tune with noise=False"
            )
        return gaussian if noise is None else noise

    def predict(
        self,
        x: Any,
        *,
        how: How | None = None,
        link: Link = "probit",
        joint: bool = False,
        outputs: Tensor | None = None,
        samples: int = 100,
        generator: torch.Generator | None = None,
        output: Output = None,
        memory_budget: int | None = None,
    ) -> Prediction:
        """The predictive distribution of inputs ``x``.

        ``how``: "linearised" (the default; the model's own output as mean, J Σ Jᵀ as covariance),
        "propagated" (variances passed forward, all outputs at the cost of about two passes, an
        approximation),
        "draws" (``samples`` draws of the linearised function, whose cost does not grow with the
        outputs; the default of thousands of them), or "weights" (an average over ``samples`` drawn
        models). ``link`` gives class probabilities:
        "probit", "mc", "bridge" or "mean_field". ``x`` is a batch or a loader, whose labels are
        dropped. ``joint`` adds the covariance between outputs,
        ``outputs`` for some of the flattened outputs alone, [k] or [N, k].
        """
        parts: list[Prediction] = []
        done = 0
        for inputs in self.batches_to_predict(x):
            own = outputs
            if outputs is not None and outputs.dim() == 2 and not is_batch(x):
                (batch,) = batches_of([(inputs, None)])
                own = outputs[done : done + batch.count]
            found = predict(
                self.model, inputs, self.posterior, self.likelihood,
                how=how or self.how, link=link, joint=joint, outputs=own, samples=samples,
                generator=generator, output=self.output if output is None else output,
                memory_budget=memory_budget, temperature=self.temperature,
            )  # fmt: skip
            done += len(found.mean)
            parts.append(found)
        return joined(parts)

    def batches_to_predict(self, x: Any) -> Iterator[Any]:
        """The inputs of each batch of ``x``, labels dropped."""
        yield from unlabelled(self.model, x, labelled=True)

    @property
    def network_likelihood(self) -> Likelihood:
        """The likelihood of the network alone: its noise is that of the training data."""
        known, measured = self.fitted_likelihood, self.measured
        if not isinstance(known, Gaussian) or measured is None or not measured.nll:
            return self.likelihood
        return replace(known, variance=known.variance * (2 * measured.nll / measured.targets))

    def evaluate(self, data: Any, shifted: Any = None, **options: Any) -> Evaluation:
        """Scores of predictions of labelled ``data``, beside those of the network alone.

        Accuracy, NLL, ECE and Brier score of classes; RMSE, NLL and coverage of a regression. With
        ``shifted``, inputs of another kind, the AUROC of telling them from ``data`` by the
        confidence. ``options`` are those of :meth:`predict`.
        """
        return evaluate(self, data, shifted, **options)

    def plot_calibration(self, data: Any, axes: Any = None, **options: Any) -> Any:
        """Reliability of class probabilities before and after, and histograms of confidence."""
        return plot_calibration(self.evaluate(data, **options), axes)

    def compare(
        self,
        structures: Iterable[str | Mapping[str, Any]],
        train: Any,
        held_out: Any,
        data: Any,
        shifted: Any = None,
    ) -> Comparison:
        """Fit each structure on ``train``, tune it on ``held_out``, and evaluate it on ``data``.

        A structure is a name, or a dict of arguments of :class:`Laplace`; the model, likelihood and
        output are those of this posterior, which stays as it is.
        """
        make = partial(Laplace, self.model, self.fitted_likelihood, output=self.output)
        return compare(make, structures, train, held_out, data, shifted)

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Parameters drawn from the posterior, [count, *shape] by name."""
        drawn = self.posterior.sample(count, generator)
        return {name: step + self.parameters[name].detach() for name, step in drawn.items()}

    def merge(self, other: Laplace) -> Laplace:
        """The posterior of both data sets together, with this one's prior and noise."""
        both = self._copy()
        both.measured = self._fitted().merge(other._fitted())
        return both

    def save(self, path: Any) -> None:
        """Write the posterior to a safetensors file: no pickle, nothing of the model itself."""
        saved.save(self, Path(path))

    @classmethod
    def load(cls, path: Any, model: nn.Module, *, likelihood: Any = None) -> Laplace:
        """Read a posterior of this very model, with the parameters it was fitted at.

        ``likelihood`` is needed only for a loss function of your own, which no file can hold.
        """
        return saved.load(cls, Path(path), model, likelihood)

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self.parameters.values())
        known = self.measured
        lines = [
            f"Laplace of {type(self.model).__name__}, {type(self.fitted_likelihood).__name__}",
            "  structure: chosen at the first batch of a fit"
            if self._open
            else f"  structure: {self.structure}, method: {self.method}",
            f"  {count:,} uncertain parameters, predictions: {self.how}",
            "  not fitted: call fit(data)"
            if known is None
            else f"  fitted to {known.samples} samples",
        ]
        values = torch.cat([value.flatten().cpu() for value in self.prior.values.values()])
        low, high = float(values.min()), float(values.max())
        spread = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        lines.append(f"  prior precision: {spread}")
        if isinstance(self.likelihood, Gaussian):
            lines.append(f"  variance of the noise: {self.likelihood.variance}")
        if self.temperature != 1:
            lines.append(f"  temperature: {self.temperature:.4g}")
        if self.choice is not None:
            plain, chosen, count = self.choice.plain, self.choice.chosen, self.choice.count
            lines.append(f"  {count} held-out targets: NLL {chosen:.4f}, network alone {plain:.4f}")
        return "\n".join(lines)

    def _fitted(self) -> Measured:
        if self.measured is None:
            raise RuntimeError("the posterior is not fitted yet: call fit(data) first")
        check_weights(self.model, self.measured.fingerprint)
        return self.measured

    def _evidence(self) -> Evidence:
        measured = self._fitted()
        if measured.nll is None or measured.constant is None:
            raise RuntimeError("the evidence needs labels: fit on batches (inputs, labels)")
        at = self.optimum
        theta, nll = (self.parameters, measured.nll) if at is None else (at.theta, at.nll)
        return Evidence(self.posterior, theta, nll, measured.constant, measured.targets)

    def _subject(self) -> Subject:
        return Subject(
            self.model,
            self.parameters,
            self.fitted_likelihood,
            self.method,
            self.output,
            self.options,
            self.prior.precision,
            self.scale,
            torch.Generator(next(iter(self.parameters.values())).device),
        )

    def _tune_cautiously(self, noise: bool) -> None:
        found = cautious(self.posterior, self.prior, self.scale, self._fitted(), noise=noise)
        self._retune(*found)

    def _tune_linearised(self, data: Any, noise: bool, steps: int, tolerance: float | None) -> None:
        """Coordinate ascent of the evidence in (θ, Λ); each of the two is a concave problem.

        Without a ``tolerance`` it ends where less than a tenth of a nat is to be won in θ, and
        precisions change by less than a percent; if it does not get there, the prior is cautious.
        """
        nats, close = (NATS, CLOSE) if tolerance is None else (0.0, tolerance)
        try:
            for _ in range(steps):
                found = self._optimum(data, max(min(close, 1e-4), 1e-10), nats)
                old, old_scale = self.prior, self.scale
                self._retune(*by_gradient(self._evidence(), old, old_scale, noise=noise, steps=100))
                self.optimum = found
                changes = [
                    (self.prior.values[k] / v).log().abs().max() for k, v in old.values.items()
                ]
                changes.append((self.scale / old_scale).log().abs())
                if float(torch.stack(changes).max()) < close:
                    break
            self._optimum(data, max(min(close, 1e-4), 1e-10), nats)
        except Refused as error:
            if tolerance is not None:
                raise
            warnings.warn(f"{error}. The prior is cautious instead", stacklevel=4)
            self._tune_cautiously(noise)
            return
        self._warn_of_unsettled(noise)

    def _optimum(self, data: Any, tolerance: float, nats: float) -> Optimum:
        known = None if self.optimum is None else self.optimum.theta
        self.optimum = find_optimum(
            self._subject(), data, self.posterior, by="conjugate_gradients",
            tolerance=tolerance, steps=50, start=known, nats=nats,
        )  # fmt: skip
        return self.optimum

    def _warn_of_unsettled(self, noise: bool) -> None:
        unsettled = self._evidence().unsettled(self.prior, self.scale, noise)
        if unsettled:
            warnings.warn(
                f"no optimum of the evidence was found for {', '.join(unsettled)}: it may have "
                "none but at zero or infinity. More steps= may find one; tune(held_out) and "
                "set_prior choose precisions without the evidence",
                stacklevel=4,
            )

    def _retune(self, prior: Prior, scale: Tensor) -> None:
        self.prior, self.scale, self.optimum = prior, scale.detach(), None
        self.temperature, self.choice = 1.0, None
        if self._posterior is not None:
            self._posterior = self._posterior.rescaled(prior.precision, self.scale)

    def _tune_on(self, data: Any, noise: bool) -> None:
        """The choice by held-out ``data``, from the cautious prior."""
        measured = self._fitted()
        self._tune_cautiously(noise)
        generator = torch.Generator(self.scale.device).manual_seed(self.seed)
        groups = separate_groups(self.prior, self.posterior)
        curves = curves_of(
            self.model, data, self.posterior, self.likelihood, self.output,
            list(groups.values()), nodes_below(self.scale), generator,
        )  # fmt: skip
        found = choose(curves, len(groups), noise=noise)
        warn_of(found, curves, measured, gaussian=isinstance(self.likelihood, Gaussian))
        keys = {key: place for place, names in enumerate(groups) for key in names}
        factors = {key: found.factors[keys[key]] for key in self.prior.values}
        self._retune(scaled(self.prior, factors), self.scale * math.exp(found.scale))
        self.temperature, self.choice = math.exp(found.temperature), found

    def _copy(self) -> Laplace:
        both = Laplace.__new__(Laplace)
        both.__dict__.update(self.__dict__, _posterior=None, optimum=None)
        return both
