"""Outputs that are asked for, of all samples or of each, and the columns that begin at them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from lapkernels.curvature.passes.passes import Pass


def with_outputs(batches: Iterable[Pass], outputs: Tensor | None) -> Iterator[tuple[Pass, Tensor]]:
    """Passes with finite predictions, each with the flat outputs [N, k] that are asked for.

    ``outputs`` is None for all of them, [k] for all samples or [N, k] for each sample of all
    batches, one after the other.
    """
    done = 0
    for one in batches:
        check_prediction(one.prediction)
        size = one.prediction.shape[1:].numel()
        chosen = _chosen(outputs, size, one.prediction.device)
        if chosen.shape[0] != 1:
            chosen = chosen[done : done + one.count]
            if chosen.shape[0] != one.count:
                raise ValueError(
                    f"outputs has {done + chosen.shape[0]} rows, but there are more samples"
                )
        done += one.count
        yield one, chosen.expand(one.count, -1)
    if outputs is not None and outputs.dim() == 2 and outputs.shape[0] != done:
        raise ValueError(f"outputs has {outputs.shape[0]} rows, but there are {done} samples")


def check_prediction(f: Tensor) -> None:
    """Raise unless all outputs are finite."""
    bad = int(f.isfinite().logical_not().sum())
    if bad:
        raise ValueError(f"{bad} of the model's outputs are not finite: they have no variance")


def unit_columns(f: Tensor, chosen: Tensor) -> Tensor:
    """One at output ``chosen`` [N, v] of each sample, zero elsewhere: [v, *f.shape]."""
    s = f.new_zeros(chosen.shape[1], f.shape[0], f.shape[1:].numel())
    return s.scatter_(2, chosen.T.unsqueeze(2), 1.0).reshape(chosen.shape[1], *f.shape)


def _chosen(outputs: Tensor | None, size: int, device: torch.device) -> Tensor:
    if outputs is None:
        return torch.arange(size, device=device).unsqueeze(0)
    if outputs.is_floating_point() or outputs.dtype == torch.bool or outputs.dim() not in (1, 2):
        raise ValueError(
            f"outputs has dtype {outputs.dtype} and shape {tuple(outputs.shape)}: flat indices of "
            "outputs are needed, [k] or [N, k]"
        )
    bad = (outputs < 0) | (outputs >= size)
    if bool(bad.any()):
        raise ValueError(f"outputs holds {int(outputs[bad][0])}: 0 to {size - 1} are possible")
    return (outputs.unsqueeze(0) if outputs.dim() == 1 else outputs).to(device)
