"""Some values of each of many tensors, in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapkernels.ops.base.registration import kernel_for

# The number of runs and their length. Single values would cost a cache line each.
COUNT, LENGTH = 8, 8


def value_samples(tensors: Sequence[Tensor]) -> Tensor:
    """Evenly spaced runs of values of each tensor, or all its values, concatenated.

    A vector of float64 on the CPU.
    """
    kernel = kernel_for("value_samples", tensors[:1]) if tensors else None
    if kernel is not None:
        dtype = tensors[0].dtype
        if all([t.is_cpu and t.dtype is dtype and t.is_contiguous() for t in tensors]):
            return kernel(tensors, COUNT, LENGTH)
    parts = [_some(tensor.detach().reshape(-1)) for tensor in tensors]
    if len({part.device for part in parts}) > 1:
        parts = [part.cpu() for part in parts]
    # Of one device: copied at once.
    found = torch.cat(parts) if parts else torch.empty(0, device="cpu")
    return found.to("cpu", torch.float64)


def _some(values: Tensor) -> Tensor:
    size = len(values)
    if size <= COUNT * LENGTH:
        return values
    step = size // COUNT
    return values[: COUNT * step].view(COUNT, step)[:, :LENGTH].reshape(-1)
