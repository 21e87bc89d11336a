r"""Weights whose scale does not matter, because a norm follows them.

A group :math:`\theta''` is normalised if :math:`f(\theta' + k \theta'') = f(\theta' + \theta'')`
for k > 0. Found by a trial: scaled by two, in float64 and without the norms' epsilon, the outputs
must not change. BatchNorm takes its statistics from the batch in the trial, as in training.
(Antorán et al., Adapting the linearised Laplace model evidence, 2022.)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Batch, batches_of, mapped, tensors_in
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.recording.run_model import call_model

# Negligible beside a variance, and large enough to divide by.
EPSILON = 1e-30
TOLERANCE = 1e-8


@torch.no_grad()
def normalised_groups(model: nn.Module, x: Any) -> dict[str, tuple[str, ...]]:
    """Names of the parameters of each normalised group, by the path of their module.

    All parameters of a module together are tried first, then each of them alone. ``x`` is a batch
    of at least two inputs.
    """
    batch = next(batches_of(x if isinstance(x, Tensor) else [(x, None)]))
    if batch.count < 2:
        raise ValueError("x has one sample: normalised groups need at least two")
    trial = copy.deepcopy(model).double().eval()
    for module in trial.modules():
        if isinstance(getattr(module, "eps", None), float):
            setattr(module, "eps", EPSILON)  # noqa: B010 - a module's type hides its numbers
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    wanted = _outputs(trial, batch)
    tied = _tied(model)
    found: dict[str, tuple[str, ...]] = {}
    for path, module in trial.named_modules():
        prefix = f"{path}." if path else ""
        own = [prefix + name for name, _ in module.named_parameters(recurse=False)]
        own = [name for name in own if name not in tied]
        if not own:
            continue
        if _invariant(trial, own, batch, wanted):
            found[path] = tuple(own)
        else:
            for name in own if len(own) > 1 else ():
                if _invariant(trial, [name], batch, wanted):
                    found[name] = (name,)
    return found


def _tied(model: nn.Module) -> set[str]:
    """Second and later names of a parameter."""
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return every - {name for name, _ in model.named_parameters()}


def _invariant(model: nn.Module, names: Iterable[str], batch: Batch, wanted: list[Tensor]) -> bool:
    values = {name: 2 * model.get_parameter(name) for name in names}
    if all(not bool(value.any()) for value in values.values()):
        return False
    found = _outputs(model, batch, values)
    return all(
        bool(torch.allclose(a, b, rtol=0, atol=TOLERANCE * float(b.abs().max())))
        for a, b in zip(found, wanted, strict=True)
    )


def _outputs(
    model: nn.Module, batch: Batch, values: dict[str, Tensor] | None = None
) -> list[Tensor]:
    """All tensors that the model returns, in float64."""
    args, kwargs = _double(batch.args), _double(batch.kwargs)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with random_state_kept(model, args, kwargs):
        result = call_model(model, args, kwargs, {**buffers, **(values or {})})
    return list(tensors_in(result))


def _double(value: Any) -> Any:
    return mapped(lambda x: x.double() if x.is_floating_point() else x, value)
