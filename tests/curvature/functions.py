"""Every public function of curvature on a model with inputs and labels, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

import lapkernels as lk


def ones(model: nn.Module) -> dict[str, Tensor]:
    """A vector, or variances, of its trained parameters; a compiled model has its own's names."""
    model = getattr(model, "_orig_mod", model)
    return {name: torch.ones_like(p) for name, p in model.named_parameters() if p.requires_grad}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


# By name, of (model, x, y, likelihood). Only what reads labels is given them.
FUNCTIONS: dict[str, Callable[[nn.Module, Any, Any, Any], Any]] = {
    "diag": lambda m, x, y, noise: lk.diag(m, (x, None), noise),
    "mc": lambda m, x, y, noise: lk.diag(m, (x, None), noise, "mc", generator=seeded()),
    "approx": lambda m, x, y, noise: lk.diag(m, (x, None), noise, "approx"),
    "hessian_diag": lambda m, x, y, noise: lk.hessian_diag(m, (x, y), noise),
    "gradient_and_diag": lambda m, x, y, noise: lk.gradient_and_diag(m, (x, y), noise),
    "kron": lambda m, x, y, noise: lk.kron(m, (x, None), noise, "exact"),
    "kron_corrected": lambda m, x, y, noise: lk.kron_corrected(m, [(x, None)], noise, "exact"),
    "blocks": lambda m, x, y, noise: lk.blocks(m, (x, None), noise),
    "full": lambda m, x, y, noise: lk.full(m, (x, None), noise),
    "low_rank": lambda m, x, y, noise: lk.low_rank(m, [(x, None)], 1, noise, generator=seeded()),
    "ggn_product": lambda m, x, y, noise: lk.ggn_product(m, (x, None), ones(m), noise),
    "predictive_variance": lambda m, x, y, noise: lk.predictive_variance(m, x, ones(m)),
    "predictive_covariance": lambda m, x, y, noise: lk.predictive_covariance(m, x, ones(m)),
    "propagated_variance": lambda m, x, y, noise: lk.propagated_variance(m, x, ones(m)),
}


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors([*value.values()])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value):
        yield from tensors([getattr(value, field.name) for field in fields(value)])
