"""Prior precision and noise from the evidence while the network is still trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.laplace.laplace import Laplace
from lapkernels.laplace.prior import Given, Prior, resolve_prior
from lapkernels.laplace.rollback import rolled_back
from lapkernels.likelihoods import Likelihood, resolve


class OnlineEvidence:
    """Refits and retunes a posterior every few epochs of training (Immer et al., 2021).

    .. code-block:: python

        online = OnlineEvidence(model, "classification", every=5, burn_in=10)
        for epoch in range(100):
            for x, y in loader:
                optimizer.zero_grad()
                online.loss(model(x), y, num_data=50_000).backward()
                optimizer.step()
            online.end_epoch(loader)

    ``history`` has epoch and log evidence of every refit, ``laplace`` the last posterior. Options
    are those of :class:`Laplace`.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Any = "gaussian",
        structure: str = "kron",
        *,
        prior: Given = "layer",
        every: int = 5,
        burn_in: int = 10,
        steps: int = 20,
        **options: Any,
    ) -> None:
        if every < 1 or burn_in < 0:
            raise ValueError(f"every={every} and burn_in={burn_in}: at least 1 and 0 are needed")
        self.model, self.structure, self.options = model, structure, options
        self.every, self.burn_in, self.steps = every, burn_in, steps
        chosen = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.prior: Prior = resolve_prior(prior, chosen)
        self.likelihood: Likelihood = resolve(likelihood)
        self.epoch = 0
        self.history: list[tuple[int, float]] = []
        self.laplace: Laplace | None = None

    def penalty(self) -> Tensor:
        """θᵀ Λ θ / 2 of the present prior: the sum, to be divided by the number of data."""
        parameters = dict(self.model.named_parameters())
        terms = [
            (value.to(parameters[name]) * parameters[name].square()).sum()
            for name, value in self.prior.precision.items()
        ]
        return 0.5 * torch.stack(terms).sum()

    def loss(self, f: Tensor, y: Tensor, num_data: int) -> Tensor:
        """-log p(y, θ) / num_data, estimated from a batch of outputs and targets."""
        return self.likelihood.nll(f, y) / len(f) + self.penalty() / num_data

    @rolled_back
    def end_epoch(self, data: Any) -> bool:
        """To be called after every epoch; whether the prior was tuned, on ``data``."""
        self.epoch += 1
        if self.epoch < self.burn_in or (self.epoch - self.burn_in) % self.every:
            return False
        modes = {module: module.training for module in self.model.modules()}
        try:
            self.model.eval()
            la = Laplace(
                self.model, self.likelihood, self.structure, prior=self.prior, **self.options
            )
            la.fit(data).tune(by="evidence", steps=self.steps)
        finally:
            for module, training in modes.items():
                module.training = training
        self.prior, self.likelihood, self.laplace = la.prior, la.likelihood, la
        self.history = [*self.history, (self.epoch, float(la.log_evidence()))]
        return True
