r"""Weights whose scale does not matter, because a norm follows them.

A group :math:`\theta''` is normalised if :math:`f(\theta' + k \theta'') = f(\theta' + \theta'')`
for k > 0. Found by a trial: scaled by two, in float64 and without the norms' epsilon, the outputs
must not change. BatchNorm takes its statistics from the batch in the trial, as in training.
(Antorán et al., Adapting the linearised Laplace model evidence, 2022.)

Several layers may be scale-free together and not alone: all that add to a residual stream before a
norm. If f does not change where every parameter p is scaled by :math:`e^{t a_p}`, then
:math:`\sum_p a_p \, \theta_p \cdot \partial f / \partial \theta_p = 0` at all θ. Solutions a of
zeros and ones, from a few random θ, are what is tried.
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
# Cotangents beyond the number of unknowns.
SPARE = 8


@torch.no_grad()
def normalised_groups(model: nn.Module, x: Any) -> dict[str, tuple[str, ...]]:
    """Names of the parameters of each normalised group, by the path of their module.

    All parameters of a module together are tried first, then each of them alone, then sets of the
    parameters that are left, which have the name of their first. ``x`` is a batch of at least two
    inputs.
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
    grouped = {name for names in found.values() for name in names}
    for names in _joint(trial, _streams_last(trial, grouped | tied), batch):
        if not grouped.intersection(names) and _invariant(trial, names, batch, wanted):
            found[f"{names[0]} and {len(names) - 1} more"] = names
            grouped.update(names)
    return found


def _streams_last(model: nn.Module, done: set[str]) -> list[str]:
    """Parameters that are not ``done``, vectors of norms first.

    The earlier of them are the unknowns of ``_joint``. So of all that may scale a residual branch
    it is its last layer that goes with the stream.
    """
    scales, others = [], []
    for path, module in model.named_modules():
        own = dict(module.named_parameters(path, recurse=False))
        vectors = all(p.dim() == 1 for p in own.values())
        (scales if vectors else others).extend(name for name in own if name not in done)
    return scales + others


def _joint(model: nn.Module, names: list[str], batch: Batch) -> list[tuple[str, ...]]:
    """Sets of two or more of ``names`` that no cotangent tells from scale-free ones."""
    if len(names) < 2:
        return []
    generator = torch.Generator().manual_seed(0)
    rows = [_slopes(model, names, batch, generator) for _ in range(len(names) + SPARE)]
    matrix = torch.stack(rows)
    matrix = matrix / matrix.abs().amax(1, keepdim=True).clamp_min(EPSILON)
    _, values, vectors = torch.linalg.svd(matrix, full_matrices=True)
    free = vectors[int((values > TOLERANCE * values[0]).sum()) :]
    found: list[tuple[str, ...]] = []
    for row in _reduced(free):
        chosen = tuple(name for name, a in zip(names, row.tolist(), strict=True) if abs(a) > 0.5)
        if len(chosen) > 1 and torch.allclose(row, (row.abs() > 0.5).double(), atol=1e-4):
            found.append(chosen)
    return found


def _slopes(model: nn.Module, names: list[str], batch: Batch, generator: torch.Generator) -> Tensor:
    """c · (df / dθ_p) θ_p of each parameter, at random θ and a random cotangent c."""

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)

    values: dict[str, Tensor] = {}
    for name, p in model.named_parameters():
        spread = p.detach().square().mean().sqrt().clamp_min(0.1)
        values[name] = p.detach() + 0.3 * spread * normal(p)
        values[name].requires_grad_(name in names)
    with torch.enable_grad():
        outputs = [f for f in _outputs(model, batch, values) if f.requires_grad]
        slopes = torch.autograd.grad(
            outputs, [values[n] for n in names], [normal(f) for f in outputs], allow_unused=True
        )
    zero = torch.zeros((), dtype=torch.float64)
    return torch.stack(
        [
            zero if slope is None else (slope * values[name]).sum().detach().cpu()
            for name, slope in zip(names, slopes, strict=True)
        ]
    )


def _reduced(rows: Tensor) -> Tensor:
    """The reduced row echelon form."""
    rows = rows.clone()
    done = 0
    for column in range(rows.shape[1]):
        if done == len(rows):
            break
        best = done + int(rows[done:, column].abs().argmax())
        if rows[best, column].abs() < 1e-6:
            continue
        rows[[done, best]] = rows[[best, done]]
        rows[done] /= rows[done, column].clone()
        others = torch.arange(len(rows)) != done
        rows[others] -= rows[others, column].unsqueeze(1) * rows[done]
        done += 1
    return rows


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
