"""A Lightning callback that tunes the prior by the evidence while the network is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lapkernels.laplace import OnlineEvidence
from lapkernels.laplace.prior import Given


class OnlineEvidenceCallback(Callback):
    """:class:`lapkernels.laplace.OnlineEvidence` in Lightning's training loop.

    .. code-block:: python

        tuning = OnlineEvidenceCallback("classification", module="network")
        Trainer(max_epochs=50, callbacks=[tuning]).fit(model, loader)
        tuning.online.laplace.predict(x)

    ``training_step`` returns the mean negative log-likelihood of its batch: the cross-entropy, or
    in regression ``tuning.nll(f, y)``, which knows the noise that was tuned. The gradient of the
    prior is added before every step of an optimiser, so that no weight decay is to be set. After
    some epochs the posterior is refitted and the prior tuned on ``data``, the training loader if it
    is None; its batches are pairs (inputs, labels). Their log evidence is logged as
    ``log_evidence``.

    ``module`` names the attribute of the LightningModule that maps inputs to outputs; it is the
    LightningModule itself if None. ``every``, ``burn_in`` and other options are those of
    ``OnlineEvidence``.
    """

    def __init__(
        self,
        likelihood: Any = "gaussian",
        structure: str = "kron",
        *,
        module: str | None = None,
        prior: Given = "layer",
        data: Any = None,
        **options: Any,
    ) -> None:
        self.arguments = (likelihood, structure)
        self.module, self.data = module, data
        self.options = {"prior": prior, **options}
        self._online: OnlineEvidence | None = None

    @property
    def online(self) -> OnlineEvidence:
        """The prior, likelihood, posterior and history of the training."""
        if self._online is None:
            raise RuntimeError("there is nothing yet: training has not begun")
        return self._online

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood of a batch at the present noise."""
        return self.online.likelihood.nll(f, y) / len(f)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start from the prior in the options."""
        if trainer.world_size > 1:
            raise RuntimeError(
                f"OnlineEvidenceCallback works in one process, but there are {trainer.world_size}"
            )
        model = pl_module if self.module is None else getattr(pl_module, self.module, None)
        if not isinstance(model, nn.Module):
            raise ValueError(f"module={self.module!r} is no module of {type(pl_module).__name__}")
        self._online = OnlineEvidence(model, *self.arguments, **self.options)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Add the gradient Λ θ / N of the prior to the parameters that are stepped."""
        count = _count(trainer)
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        named = dict(self.online.model.named_parameters())
        with torch.no_grad():
            for name, precision in self.online.prior.precision.items():
                parameter = named[name]
                if id(parameter) in stepped and parameter.grad is not None:
                    parameter.grad += precision.to(parameter) * parameter / count

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refit and tune, in every ``every``-th epoch after ``burn_in``."""
        data = trainer.train_dataloader if self.data is None else self.data
        if self.online.end_epoch(_OnDevice(data, pl_module)):
            pl_module.log("log_evidence", self.online.history[-1][1])


class _OnDevice:
    """The batches of a loader where the module is."""

    def __init__(self, data: Any, module: LightningModule) -> None:
        self.data, self.module = data, module

    def __iter__(self) -> Iterator[Any]:
        for batch in self.data:
            x, y = batch
            yield self.module.transfer_batch_to_device((x, y), self.module.device, 0)


def _count(trainer: Trainer) -> int:
    dataset = getattr(trainer.train_dataloader, "dataset", None)
    if dataset is None:
        raise RuntimeError("the training loader has no dataset, whose size the prior needs")
    return len(dataset)
