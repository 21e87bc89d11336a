"""A factorised Gaussian over the parameters of a model."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature import Diagonal
from lapkernels.curvature.data.batches import Batch, batches_of
from lapkernels.curvature.data.contents import Contents, check_eval
from lapkernels.curvature.recording.targets import with_targets
from lapkernels.curvature.results.summary import Summary
from lapkernels.laplace import Laplace, Prediction, Prior
from lapkernels.laplace.fitting import Measured
from lapkernels.laplace.rollback import rolled_back
from lapkernels.laplace.weights import fingerprint_of
from lapkernels.ops import gaussian_kl
from lapkernels.variational.objective import Objective


class MeanField(Objective, ABC):
    r"""q(w) = N(μ, diag(σ²)): μ the model's own parameters, log σ parameters beside them.

    log σ starts at log s - 3, where s is the prior's standard deviation.
    """

    def __init__(
        self, *args: Any, generator: torch.Generator | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.generator = generator
        self.log_std = nn.ParameterList(
            torch.full_like(mean, math.log(self.prior_std[name]) - 3)
            for name, mean in zip(self.names, self.means, strict=True)
        )

    def param_groups(self, lr: float, log_std_lr_multiplier: float = 10.0) -> list[dict[str, Any]]:
        """Groups for an optimiser, without decay.

        log σ has to move by 3 to reach the prior, further than weights ever go, and steps of Adam
        are bounded by the learning rate: with a multiplier of 1 training ends too early.
        """
        rate = lr * log_std_lr_multiplier
        spread = {"params": list(self.log_std), "lr": rate, "weight_decay": 0.0}
        return [*super().param_groups(lr), spread]

    def complexity(self) -> Tensor:
        """KL(q | prior), a scalar."""
        groups: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
        for name, mean, log_std in zip(self.names, self.means, self.log_std, strict=True):
            means, log_stds = groups.setdefault(self.prior_std[name], ([], []))
            means.append(mean)
            log_stds.append(log_std)
        return torch.stack([gaussian_kl(*group, std) for std, group in groups.items()]).sum()

    def laplace(self) -> Laplace:
        """The present Gaussian as a :class:`lapkernels.Laplace` of structure diag.

        Its curvature is 1/σ² - 1/s², so that another prior can be tried with ``set_prior``.
        """
        values = {
            name: torch.tensor(s**-2.0, device="cpu").double() for name, s in self.prior_std.items()
        }
        prior = Prior({name: (name,) for name in values}, values)
        found = Laplace(
            self.model, self.likelihood, "diag", "mc", list(self.names), prior, output=self.output
        )
        curvature = {
            name: (-2 * log_std.detach().double()).exp() - values[name].to(log_std.device)
            for name, log_std in zip(self.names, self.log_std, strict=True)
        }
        summary = Summary.of(self.data_size, found.parameters, "mean field", self.likelihood)
        state = {name: h.to(self.log_std[0].dtype) for name, h in curvature.items()}
        found.measured = Measured(
            Diagonal(state, summary), self.data_size, None, None,
            fingerprint=fingerprint_of(found.model),
        )  # fmt: skip
        return found

    def predict(self, x: Any, **options: Any) -> Prediction:
        """The predictive distribution, with the options of :meth:`lapkernels.Laplace.predict`."""
        return self.laplace().predict(x, **options)

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Parameters drawn from q, [count, *shape] by name."""
        return self.laplace().sample(count, generator)

    def save(self, path: Any) -> None:
        """Write q to a safetensors file, without the model; a ``state_dict`` resumes training."""
        self.laplace().save(path)

    @staticmethod
    def load(path: Any, model: nn.Module, *, likelihood: Any = None) -> Laplace:
        """The Gaussian that was saved, around the parameters it was trained with."""
        return Laplace.load(path, model, likelihood=likelihood)

    def draw(self) -> dict[str, Tensor]:
        """One draw of the parameters by name, differentiable in μ and log σ."""
        return {
            name: mean + log_std.exp() * _noise(mean, self.generator)
            for name, mean, log_std in zip(self.names, self.means, self.log_std, strict=True)
        }

    @rolled_back
    @torch.no_grad()
    def sampled_outputs(self, x: Any, samples: int = 10) -> Tensor:
        """Outputs of networks drawn from q, [samples, N, *out]."""
        check_eval(Contents.of(self.model))
        batch = next(with_targets(self.model, batches_of(x)))
        return torch.stack([self.outputs(batch, self.draw()) for _ in range(samples)])

    @rolled_back
    def elbo(self, data: Iterable[Any]) -> float:
        """The tempered evidence lower bound by this method's own estimate, in nats.

        ``data`` is the training set, or a part of it, in batches (x, y). The model stays in the
        mode (train or eval) it is in.
        """
        total, count = 0.0, 0
        for batch in with_targets(self.model, batches_of(data)):
            total += self.fit(batch).item()
            count += batch.count
        return -total * self.data_size / count - self.beta * self.complexity().item()


class VariationalInference(MeanField):
    r"""Mean-field variational inference by one reparameterised draw w = μ + σ ε for each batch.

    .. math:: -\frac1S \log p(y \mid x, w) + \frac{\beta}{N} KL(q \,|\, p)
    """

    def fit(self, batch: Batch) -> Tensor:
        """-log p(y | x, w) of the draw."""
        return self.observed(self.outputs(batch, self.draw()), batch)


def _noise(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
