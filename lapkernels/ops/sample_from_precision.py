r"""Samples of a Gaussian with diagonal precision.

.. math:: \theta = \mu + c \, \epsilon / \sqrt{h + \lambda}
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.ops.base.parameter_lists import check_lists
from lapkernels.ops.base.registration import register_list_update


def sample_from_precision(
    mean: Sequence[Tensor],
    precision: Sequence[Tensor],
    *,
    prior_precision: float = 0.0,
    scale: float = 1.0,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """One sample a parameter, whole lists in one pass over memory after the noise is drawn.

    Differentiable in ``mean`` and ``precision``. Raises if an entry of
    ``precision + prior_precision`` is not positive.
    """
    check_lists(mean=mean, precision=precision)
    noise = [
        torch.randn(mu.shape, dtype=mu.dtype, device=mu.device, generator=generator) for mu in mean
    ]
    for index, h in enumerate(precision):
        if h.numel() and not float(h.detach().amin()) + prior_precision > 0:
            raise ValueError(
                f"precision[{index}] + prior_precision has an entry that is not positive: "
                f"{float(h.detach().amin()) + prior_precision}"
            )
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*mean, *precision)):
        return [
            mu + scale * e * (h + prior_precision).rsqrt()
            for mu, h, e in zip(mean, precision, noise, strict=True)
        ]
    _op(noise, list(mean), list(precision), prior_precision, scale)
    return noise


def _reference(
    noise: Sequence[Tensor],
    mean: Sequence[Tensor],
    precision: Sequence[Tensor],
    prior_precision: float,
    scale: float,
) -> None:
    for e, mu, h in zip(noise, mean, precision, strict=True):
        e.mul_((h + prior_precision).rsqrt_()).mul_(scale).add_(mu)


_op = register_list_update(
    "sample_from_precision",
    "Tensor(a!)[] noise, Tensor[] mean, Tensor[] precision, float prior_precision, float scale",
    reference=_reference,
)
