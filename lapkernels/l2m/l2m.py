r"""L2M: a diagonal Laplace approximation from an optimiser's second moment, with no extra pass.

An adaptive optimiser averages g², with g the gradient of a batch of S samples. At a minimum the
samples' gradients cancel in expectation, so that for a loss averaged over the batch

.. math:: E[g^2] = \frac1S F, \qquad A = N F + \lambda = N S \, E[g^2] + \lambda,

with F the mean squared gradient of one sample, the empirical Fisher's diagonal, and A the precision
of the posterior for N samples. For a summed loss E[g²] = S F, and A = N/S E[g²] + λ.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from lapkernels.curvature import Diagonal
from lapkernels.curvature.data.batches import Output
from lapkernels.curvature.data.contents import Contents, Parameters, parameters_of
from lapkernels.curvature.results.summary import Summary
from lapkernels.l2m.second_moments import second_moments
from lapkernels.laplace import Laplace
from lapkernels.laplace.fitting import Measured
from lapkernels.laplace.prior import Given
from lapkernels.laplace.weights import fingerprint_of
from lapkernels.likelihoods import resolve


class L2M(Laplace):
    """A :class:`lapkernels.Laplace` of structure diag, its curvature an optimiser's second moment.

    It predicts, samples, saves and loads likewise. Tuning by the evidence needs the likelihood of
    the data, which no optimiser keeps: use ``tune(held_out)``.
    """

    @classmethod
    def from_optimizer(
        cls,
        optimizer: Optimizer,
        model: nn.Module,
        likelihood: Any,
        *,
        data_size: int,
        batch_size: int,
        reduction: Literal["mean", "sum"] = "mean",
        prior: Given = 1.0,
        convention: Literal["precision", "paper"] = "precision",
        epsilon: float = 1e-8,
        params: Parameters = None,
        output: Output = None,
    ) -> L2M:
        """The posterior around the model's parameters, from the optimiser that trained them.

        ``reduction`` is that of the training loss, -log p(y | x) averaged or summed over batches of
        ``batch_size``; ``data_size`` is N. ``prior`` is the prior's precision λ as in
        :class:`lapkernels.Laplace`. With ``convention="paper"`` the precision is instead
        E[g²] + 1/λ + ``epsilon``, as the method was published: not scaled by the data, and with
        the inverse of the penalty λ, a number.
        """
        for name, value in (("data_size", data_size), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} = {value}: a number of samples is needed")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction = {reduction!r}: 'mean' or 'sum' is needed")
        if convention == "paper":
            if not isinstance(prior, int | float) or not prior > 0:
                raise ValueError("convention='paper' needs a positive number as prior")
            prior, scale = 1 / prior + epsilon, 1.0
        elif convention == "precision":
            scale = data_size * (batch_size if reduction == "mean" else 1 / batch_size)
        else:
            raise ValueError(f"convention = {convention!r}: 'precision' or 'paper' is needed")
        chosen = parameters_of(Contents.of(model), params)
        moments = second_moments(optimizer, chosen)
        _warn_of_coupled_decay(optimizer)
        found = cls(model, likelihood, "diag", "empirical", list(chosen), prior, output=output)
        summary = Summary.of(data_size, chosen, "second moment", resolve(likelihood))
        state = Diagonal({name: scale * value for name, value in moments.items()}, summary)
        found.measured = Measured(
            state, data_size, None, None, fingerprint=fingerprint_of(found.model)
        )
        return found


def _warn_of_coupled_decay(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if group.get("weight_decay") and not group.get("decoupled_weight_decay"):
            warnings.warn(
                f"{type(optimizer).__name__} adds weight_decay={group['weight_decay']} times the "
                "weights to the gradients, so their second moment holds it too: decay decoupled "
                "from the gradients (AdamW) keeps it out",
                stacklevel=3,
            )
            return
