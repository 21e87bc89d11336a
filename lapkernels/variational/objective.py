"""A model with a Gaussian prior on its parameters, trained by any torch optimiser."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Batch, Output, batches_of, mapped, selector
from lapkernels.curvature.data.contents import Contents, Parameters, parameters_of
from lapkernels.curvature.recording.run_model import Runner
from lapkernels.curvature.recording.targets import check_outputs, with_targets
from lapkernels.laplace.rollback import rolled_back
from lapkernels.likelihoods import Likelihood, resolve

PriorStd = float | Mapping[str, float] | None


class Objective(nn.Module, ABC):
    r"""A loss with the prior N(0, s²) on the parameters ``params``; the rest have none.

    ``prior_std`` is one s, or one for each parameter or module name; by default s = 1/sqrt(fan-in)
    for weights and 1 for vectors. ``data_size`` is the number of training samples, and ``beta``
    tempers the prior's weight. ``loss(x, y)`` is per sample: its gradient does not grow with the
    batch, and the optimiser must not decay weights, since the prior is in it.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood | str | nn.Module | Callable[..., Any],
        data_size: int,
        *,
        prior_std: PriorStd = None,
        beta: float = 1.0,
        params: Parameters = None,
        output: Output = None,
    ) -> None:
        super().__init__()
        if data_size < 1:
            raise ValueError(f"data_size = {data_size}: the number of training samples is needed")
        if not beta >= 0:
            raise ValueError(f"beta = {beta}: it cannot be negative")
        self.model = model
        self.likelihood = resolve(likelihood)
        self.data_size, self.beta, self.output = data_size, beta, output
        means = parameters_of(Contents.of(model), params)
        self.names = tuple(means)
        self.prior_std = _prior_std(means, prior_std)

    @property
    def means(self) -> list[nn.Parameter]:
        """The parameters that have a prior, in the order of ``names``."""
        return [self.model.get_parameter(name) for name in self.names]

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """Groups for an optimiser, without decay."""
        return [{"params": list(self.model.parameters()), "lr": lr, "weight_decay": 0.0}]

    @rolled_back
    def loss(self, x: Any, y: Any) -> Tensor:
        """Minus the bound or log joint of a batch, divided by its number of samples."""
        batch = next(with_targets(self.model, batches_of((x, y))))
        return self.fit(batch) / batch.count + self.beta / self.data_size * self.complexity()

    @abstractmethod
    def fit(self, batch: Batch) -> Tensor:
        """The loss of the batch, summed over its samples."""

    @abstractmethod
    def complexity(self) -> Tensor:
        """The prior's term, once for the whole dataset."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs."""
        return self.model(*args, **kwargs)

    def outputs(self, batch: Batch, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """Outputs [N, *out] of the model, or with other parameters or buffers in it."""
        # Copies: the model may write to them, and gradients pass through them.
        args, kwargs = mapped(torch.clone, batch.args), mapped(torch.clone, batch.kwargs)
        if weights is None:
            result = self.model(*args, **kwargs)
        else:
            result = Runner(Contents.of(self.model))(args, kwargs, weights)
        return selector(self.output, batch.count)(result)

    def observed(self, f: Tensor, batch: Batch) -> Tensor:
        """-log p(y | f) of the labels of a batch."""
        if batch.target is None:
            raise TypeError("y is None: labels are needed")
        check_outputs(self.likelihood, f.detach(), batch)
        return self.likelihood.nll(f, batch.target)

    def get_extra_state(self) -> dict[str, Any]:
        """The settings of the prior, which are not parameters."""
        return {"prior_std": self.prior_std, "beta": self.beta, "data_size": self.data_size}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load what was saved; raise if it is of other parameters."""
        if set(state["prior_std"]) != set(self.names):
            raise ValueError("the saved state is of other parameters: build with the same params")
        known = dict(state["prior_std"]), state["beta"], state["data_size"]
        self.prior_std, self.beta, self.data_size = known


class MaximumAPosteriori(Objective):
    r"""The mode.

    .. math:: -\frac1S \log p(y \mid x, \mu) + \frac{\beta}{2N} \sum_p \mu_p^2 / s_p^2
    """

    def fit(self, batch: Batch) -> Tensor:
        """-log p(y | x, μ)."""
        return self.observed(self.outputs(batch), batch)

    def complexity(self) -> Tensor:
        """-log p(μ) up to a constant."""
        terms = zip(self.names, self.means, strict=True)
        return sum(
            (0.5 * (mean / self.prior_std[name]).square().sum() for name, mean in terms),
            start=self.means[0].new_zeros(()),
        )


def _prior_std(means: Mapping[str, Tensor], given: PriorStd) -> dict[str, float]:
    """One s for each parameter."""
    found = {}
    for name, mean in means.items():
        if given is None:
            found[name] = 1.0 if mean.dim() < 2 else 1 / math.sqrt(max(1, mean[0].numel()))
        elif isinstance(given, Mapping):
            keys = [key for key in given if name == key or name.startswith(f"{key}.")]
            if not keys:
                raise ValueError(f"prior_std has no entry for {name}: name it or its module")
            found[name] = given[max(keys, key=len)]
        else:
            found[name] = given
        if not 0 < found[name] < math.inf:
            raise ValueError(f"prior_std of {name} is {found[name]}: it must be positive")
    return found
